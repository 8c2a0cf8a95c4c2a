// The shared memory of one host: how it is laid out, and the smallest operations on it.
//
// One segment serves all ranks of a host. Its *agent*, the host's lowest rank, makes it. It holds
//   * the failure board: whether the job has failed, and why;
//   * the log ring: written by the agent (on host 0 the agent is the sequencer's rank), read by all;
//   * for each local rank a block: its doorbell, its heartbeat, its progress in the data plane, its ring of
//     records going up to the agent, and its slots, the buffers through which data passes.
// Nothing in it is a pointer or a lock: a rank may be killed at any instruction and the others still see a
// consistent segment.
#ifndef SIRTAKI_SEGMENT_H_
#define SIRTAKI_SEGMENT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "engine_abi.h"
#include "platform.h"
#include "ring.h"

namespace sirtaki {

constexpr size_t kCacheLine = 64;

struct SegmentShape {
  uint32_t local_size;
  uint32_t num_slots;
  uint64_t slot_bytes;  // multiple of 4096
  uint64_t up_ring_bytes = uint64_t{1} << 20;
  uint64_t log_ring_bytes = uint64_t{1} << 22;

  uint64_t total_bytes() const;
};

// Why a rank sleeps, and on which word its waker must knock.
enum class BellState : uint32_t {
  kAwake = 0,  // somebody drives the engine and will look again before sleeping
  kCoordinatorSleeps = 1,
  kCallerSleeps = 2,
};

// How far a rank is in the data plane; each counts tickets (see stage.h) and only grows.
enum class Stage : uint32_t { kPacked = 0, kReduced = 1, kDone = 2 };
constexpr size_t kNumStages = 3;

// A failure as one rank reports it.
struct FailureReport {
  int32_t rank;  // who is to blame
  int32_t code;  // sirtaki_error
  uint32_t text_bytes;
  std::array<char, 4000> text;
};

struct RankBlock {
  alignas(kCacheLine) std::atomic<uint32_t> bell_state;
  std::atomic<uint32_t> coordinator_word;
  std::atomic<uint32_t> caller_word;
  std::atomic<uint32_t> left;        // the log has this rank's LEFT entry; set by the agent
  std::atomic<uint32_t> up_blocked;  // this rank waits for room in its up ring

  alignas(kCacheLine) std::array<std::atomic<uint64_t>, kNumStages> stages;
  std::atomic<uint32_t> stage_sleepers;

  alignas(kCacheLine) std::atomic<uint64_t> heartbeat;  // counted up by the rank's relay thread, see relay.h

  alignas(kCacheLine) std::atomic<uint64_t> log_read;  // this rank has read the log up to here
  alignas(kCacheLine) std::atomic<uint64_t> up_written;
  alignas(kCacheLine) std::atomic<uint64_t> up_read;

  alignas(kCacheLine) FailureReport failure;  // never changed once the board points to it
};

struct SegmentHeader {
  // The failure board: 0, or 1 + the local rank whose report was first. Each rank writes its own report
  // before it tries to be first, so whoever is killed or stopped, at whatever instruction, leaves the board
  // readable.
  alignas(kCacheLine) std::atomic<uint32_t> failed_by;
  alignas(kCacheLine) std::atomic<uint64_t> log_written;
  alignas(kCacheLine) std::atomic<uint32_t> log_blocked;   // the writer waits for room in the log
  alignas(kCacheLine) std::atomic<uint32_t> relay_sleeps;  // hosts other than 0: the relay needs its eventfd
};

class Segment {
 public:
  // Maps the segment behind `fd`, which the agent has made `shape.total_bytes()` long and zero.
  Segment(int fd, const SegmentShape& shape, uint32_t local_rank);

  const SegmentShape& shape() const { return shape_; }
  uint32_t local_rank() const { return local_rank_; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(mapping_.data()); }
  RankBlock& block(uint32_t local_rank) const;
  RankBlock& own_block() const { return block(local_rank_); }
  char* slot(uint32_t local_rank, uint32_t slot) const;

  // Up ring of this rank / of any rank, on the agent. False: no room / nothing there.
  bool write_up(Record type, std::string_view payload);
  bool read_up(uint32_t local_rank, Record* type, std::string* payload);
  bool has_up(uint32_t local_rank) const;

  // Log: writing is the agent's. A rank that has stopped reading, after its own LEFT entry, does not hold the
  // writer up.
  bool write_log(Record type, std::string_view payload);
  bool read_log(Record* type, std::string* payload);
  bool has_log() const;
  void stop_reading_log();

  // Wakes whoever drives that rank's engine, if it sleeps.
  void ring(uint32_t local_rank);
  void ring_all();

  // Posts the first failure of the job and wakes all sleepers of this host; later ones change nothing, but
  // wake as well. Returns whether this was the first. `code`: sirtaki_error.
  bool post_failure(int32_t rank, std::string_view text, int32_t code = SIRTAKI_RANKS_FAILED);
  // Wakes all sleepers of this host, for whom a failure is news.
  void wake_all();
  bool failed() const;
  // The failure that was posted.
  int32_t failed_rank() const;
  int32_t failure_code() const;
  std::string failure_text() const;

 private:
  RingBytes up_ring(uint32_t local_rank) const;
  RingBytes log_ring() const;
  const FailureReport& failure() const;

  std::mutex report_mutex_;  // this rank's threads may meet failures at the same time
  SegmentShape shape_;
  uint32_t local_rank_;
  SharedMapping mapping_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_SEGMENT_H_
