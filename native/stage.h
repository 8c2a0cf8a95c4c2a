// How the ranks of a host keep step in the data plane: tickets, stages and slots.
//
// Data passes through the slots in chunks, each with a *ticket* that all ranks compute alike from the log:
// the sequence number of the EXECUTE entry and the number of the chunk in it. A rank publishes, per stage,
// the last ticket it has finished; peers wait for that. The log gives every rank its entries in one order, so
// stages only grow and nobody waits for a ticket that will not come, unless a rank has failed.
#ifndef SIRTAKI_STAGE_H_
#define SIRTAKI_STAGE_H_

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "long_wait.h"
#include "metrics.h"
#include "segment.h"

namespace sirtaki {

constexpr int kChunkBits = 24;
inline uint64_t make_ticket(uint64_t sequence, uint64_t chunk) { return sequence << kChunkBits | chunk; }

// The tickets of one EXECUTE entry, in order.
class Tickets {
 public:
  explicit Tickets(uint64_t sequence) : sequence_(sequence) {}
  uint64_t take() {
    if (next_ >> kChunkBits != 0) throw std::runtime_error("one batch has more chunks than can be counted");
    return make_ticket(sequence_, next_++);
  }

 private:
  uint64_t sequence_;
  uint64_t next_ = 0;
};

class StageBoard {
 public:
  // `spin_ns`: how long to look before sleeping in the kernel. `long_wait`: told of long waits, may be
  // nullptr.
  StageBoard(Segment* segment, int64_t spin_ns, const LongWait* long_wait = nullptr);

  // Counts how long this rank waits for whom; `ranks`: the global ranks by local rank.
  void count_waits(Metrics* metrics, std::vector<int32_t> ranks) {
    metrics_ = metrics;
    ranks_ = std::move(ranks);
  }

  // Waits until this rank's slot for the ticket is free, which it is once all who read it have finished its
  // last ticket; `readers` are the local ranks that will read it now. nullptr: the job has failed.
  char* claim_slot(uint64_t ticket, const std::vector<uint32_t>& readers);
  // Where a local rank has the data of a ticket.
  const char* slot(uint32_t local_rank, uint64_t ticket) const;
  char* own_slot(uint64_t ticket) const;

  void publish(Stage stage, uint64_t ticket);
  // False: the job has failed.
  bool wait(uint32_t local_rank, Stage stage, uint64_t ticket);
  bool wait_all(const std::vector<uint32_t>& local_ranks, Stage stage, uint64_t ticket);

 private:
  uint32_t slot_index(uint64_t ticket) const;

  struct SlotUse {
    uint64_t ticket = 0;
    std::vector<uint32_t> readers;
  };
  Segment* segment_;
  int64_t spin_ns_;
  const LongWait* long_wait_;
  std::vector<SlotUse> last_use_;
  Metrics* metrics_ = nullptr;
  std::vector<int32_t> ranks_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_STAGE_H_
