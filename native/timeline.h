// The timeline: what happens to every tensor, as a Chrome trace that Perfetto opens.
//
// The engine's threads append events of fixed size to a bounded ring; a thread of the timeline's own turns
// them into JSON and writes them. The format is described in docs/observability.md.
//
// Guarantees:
//   * while it is off, the engine pays one relaxed look at a flag per event;
//   * nobody who records waits: with the ring full events are dropped and counted, and the file says so;
//   * after every write the file is a complete JSON array, and a rank that is killed loses what happened in
//     the last kGatherNs and no more;
//   * an event is a line of its own, so that a file cut off anywhere loses at most its last line.
#ifndef SIRTAKI_TIMELINE_H_
#define SIRTAKI_TIMELINE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "platform.h"
#include "timeline_text.h"

namespace sirtaki {

// What the data plane does to a chunk of a batch.
enum class Phase : uint32_t { kPack = 0, kReduce = 1, kUnpack = 2 };
constexpr size_t kNumPhases = 3;

enum class Backend : uint8_t { kLocal = 0, kSharedMemory = 1, kSharedMemoryAndMpi = 2, kMpi = 3 };

struct TimelineEvent {
  enum class Kind : uint8_t { kSubmitted, kDone, kFailed, kBatch };
  Kind kind;
  Backend backend;
  int32_t collective;  // sirtaki_kind
  int32_t reduce_op;
  int32_t dtype;
  uint32_t session;
  uint32_t lane;
  uint32_t num_tensors;  // of the request, for kBatch of the batch
  uint32_t batch_tensors;
  uint32_t num_chunks;
  uint64_t batch;
  uint64_t bytes;
  int64_t submitted_ns;  // monotonic time, like those below
  int64_t decided_ns;    // the log has it
  int64_t begin_ns;      // its batch begins
  int64_t end_ns;
  int64_t wait_ns;  // for peers in the data plane
  std::array<int64_t, kNumPhases> phase_ns;
};

// A request's place in the timeline; session 0: it has none.
struct TimelineTag {
  uint32_t session = 0;
  uint32_t lane = 0;
  int64_t submitted_ns = 0;
};

// Many writers, one reader, no locks: each cell's turn says whose it is.
class TimelineRing {
 public:
  explicit TimelineRing(size_t capacity);  // a power of two
  bool push(const TimelineEvent& event);   // false: full
  bool pop(TimelineEvent* event);

 private:
  struct Cell {
    std::atomic<uint64_t> turn;
    TimelineEvent event;
  };
  std::unique_ptr<Cell[]> cells_;
  uint64_t mask_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) uint64_t head_ = 0;
};

class Timeline {
 public:
  static Timeline& instance();
  // Whether events are wanted; asked before anything else is done for one.
  static bool is_on() { return on_.load(std::memory_order_relaxed); }

  // Empties the file `fd`, which becomes its own, and writes `header`: lines of JSON events, each with a
  // comma at its end. False: a timeline is on already, or the file cannot be written.
  bool start(FileDescriptor fd, int32_t rank, std::string header, bool marks_batches);
  // Writes what is left. False: it was off.
  bool stop();
  // In a forked child, which has no writing thread.
  void abandon_after_fork();

  // The place of a request that is submitted now. Unnamed requests share lanes, each one while it lives.
  TimelineTag open(const std::string& name, uint32_t process_set);
  void record(const TimelineEvent& event);
  bool marks_batches() const { return marks_batches_.load(std::memory_order_relaxed); }
  uint32_t session() const { return session_.load(std::memory_order_relaxed); }

 private:
  Timeline() = default;
  void run();
  // Formats what has come; returns how many events that were.
  size_t drain(TimelineText* lines);
  void format(const TimelineEvent& event, TimelineText* lines);
  void format_tensor(const TimelineEvent& event, TimelineText* lines);
  void format_lost(uint64_t count, TimelineText* lines);
  void name_lane(uint32_t lane, TimelineText* lines);
  // Of a request that has ended.
  void release_lane(const TimelineEvent& event);
  // Empties the buffer, but for room for what comes before the lines in the file.
  static void begin(TimelineText* lines);
  // Writes the lines, if there are any; if that fails it says so, and the timeline ends. Begins anew.
  void write_out(TimelineText* lines);
  bool append(TimelineText* lines);

  static std::atomic<bool> on_;
  std::mutex control_mutex_;  // start and stop
  std::unique_ptr<TimelineRing> ring_;
  std::atomic<uint32_t> session_{0};
  std::atomic<bool> marks_batches_{false};
  std::atomic<uint64_t> num_dropped_{0};
  std::atomic<uint32_t> sleeps_{0};  // the writer, until an event comes
  std::atomic<uint32_t> stop_{0};
  std::thread writer_;

  std::mutex lanes_mutex_;
  std::unordered_map<std::string, uint32_t> lane_of_;
  std::vector<std::string> lanes_;  // their names; 0: batches
  std::vector<uint32_t> free_unnamed_;
  std::vector<bool> is_unnamed_;  // by lane
  uint32_t num_unnamed_ = 0;

  // The writer's.
  FileDescriptor fd_;
  int32_t rank_ = 0;
  int64_t written_ = 0;  // without the closing bracket
  uint64_t dropped_told_ = 0;
  bool is_broken_ = false;         // the file cannot be written
  std::vector<ShortText> places_;  // of the lanes whose names are in the file: the beginning of their lines
  std::vector<bool> is_open_;      // lanes with a begin without an end
};

// How long a batch has been in each phase. The engine has one on its stack while it runs a batch with the
// timeline on; the data plane tells it where it is, through enter_phase().
class PhaseTimes {
 public:
  explicit PhaseTimes(bool active);
  ~PhaseTimes();
  PhaseTimes(const PhaseTimes&) = delete;
  PhaseTimes& operator=(const PhaseTimes&) = delete;

  void enter(Phase phase);
  void finish();  // ends the last phase
  const std::array<int64_t, kNumPhases>& phase_ns() const { return ns_; }
  int64_t begin_ns() const { return begin_; }
  int64_t end_ns() const { return since_; }
  uint32_t num_chunks() const { return num_chunks_; }

 private:
  std::array<int64_t, kNumPhases> ns_{};
  int64_t begin_ = 0;
  int64_t since_ = 0;
  int phase_ = -1;
  uint32_t num_chunks_ = 0;
  bool active_;
};

void enter_active_phase(Phase phase);
inline void enter_phase(Phase phase) {
  if (Timeline::is_on()) enter_active_phase(phase);
}

}  // namespace sirtaki

#endif  // SIRTAKI_TIMELINE_H_
