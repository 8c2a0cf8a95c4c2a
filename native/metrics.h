// What the engine counts, for sirtaki.metrics(): written by its threads, read at any time by others.
//
// Guarantees: counting costs an atomic addition and no clock, except where a thread waits anyway; every
// number only grows while the engine lives.
#ifndef SIRTAKI_METRICS_H_
#define SIRTAKI_METRICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lateness.h"
#include "platform.h"

namespace sirtaki {

using Count = std::atomic<uint64_t>;

class Metrics {
 public:
  static constexpr size_t kKinds = 9;
  // A batch of n tensors counts under the smallest i with n <= 2^i; the last takes all that are larger.
  static constexpr size_t kBatchClasses = 14;

  explicit Metrics(int32_t size)
      : times_last(static_cast<size_t>(size)),
        waited_for_ns(static_cast<size_t>(size)),
        data_wait_ns(static_cast<size_t>(size)) {}

  void count_request(bool known) { add(known ? &cache_hits : &cache_misses, 1); }
  void count_begin() { add(&batches_begun, 1); }
  // At the batch's end, before its requests are done.
  void count_batch(int32_t kind, uint64_t calls, uint64_t tensors, uint64_t bytes);
  // From the log: the rank that a tensor waited for last.
  void count_last(int32_t rank, int64_t waited_ns);
  // In the data plane this rank has waited for a peer.
  void count_data_wait(int32_t rank, int64_t ns);
  uint64_t total_data_wait_ns() const;

  struct Kind {
    Count calls{0};
    Count tensors{0};
    Count bytes{0};
  };
  std::array<Kind, kKinds> kinds;  // by sirtaki_kind
  std::array<Count, kBatchClasses> batches{};
  Count batches_begun{0};
  Count cache_hits{0};
  Count cache_misses{0};
  std::vector<Count> times_last;     // by rank; the same on all ranks
  std::vector<Count> waited_for_ns;  // by rank; the same on all ranks
  std::vector<Count> data_wait_ns;   // by rank waited for; this rank's own

 private:
  static void add(Count* count, uint64_t n) { count->fetch_add(n, std::memory_order_relaxed); }
};

// Counts the time of its life as a wait for `rank`; without metrics it does nothing.
class WaitClock {
 public:
  WaitClock(Metrics* metrics, int32_t rank)
      : metrics_(metrics), rank_(rank), begin_ns_(metrics == nullptr ? 0 : now_ns()) {}
  ~WaitClock() {
    if (metrics_ != nullptr) metrics_->count_data_wait(rank_, now_ns() - begin_ns_);
  }
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

 private:
  Metrics* metrics_;
  int32_t rank_;
  int64_t begin_ns_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_METRICS_H_
