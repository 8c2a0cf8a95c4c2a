// The engine of one process: takes requests, agrees with the other ranks, moves the data, reports back.
//
// Life of a request: submit() (any thread) files it under its key and writes a record to the up ring; once
// the log says EXECUTE for that key, the driver runs its batch through the data plane and calls `done`.
//
// Who drives: at most one thread at a time, the holder of the *role*. The coordinator thread
// (run_coordinator) holds it while there is work and sleeps in the kernel without it otherwise. A thread that
// waits for a request (wait) takes the role when it is free and drives the engine itself, so that a
// synchronous call costs no thread switch. While a caller drives, the coordinator sleeps on undisturbed.
//
// Guarantees:
//   * `done` is called exactly once per request, with no lock held and never before the data is in place;
//   * the name of a request is free again when `done` is called;
//   * after a failure of the job every request, old and new, ends with the failure's text;
//   * no call here needs Python's GIL.
#ifndef SIRTAKI_ENGINE_H_
#define SIRTAKI_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data_plane.h"
#include "engine_abi.h"
#include "long_wait.h"
#include "messages.h"
#include "metrics.h"
#include "mpi_exchange.h"
#include "relay.h"
#include "segment.h"
#include "sequencer.h"
#include "timeline.h"
#include "topology.h"

namespace sirtaki {

struct EngineOptions {
  Topology topology;
  int64_t fusion_threshold = 0;
  size_t cache_capacity = 0;  // see Sequencer::retire
  int64_t spin_ns = 0;
  int64_t unresponsive_ns = 0;  // how long a rank may give no sign of life; 0: for ever
  // The rest is used in jobs of several ranks only.
  SegmentShape shape{};
  FileDescriptor segment;
  FileDescriptor doorbell;
  RelayLinks links;
  std::vector<std::string> labels;
  bool has_mpi = false;
  MpiTable mpi{};
};

// Why a driving or waiting call came back.
enum class Outcome {
  kDone,         // what was waited for holds
  kRare,         // there are rare events to decide (rank 0; the coordinator only)
  kInterrupted,  // look for signals, then wait again
  kTimedOut,
  kStopped,  // request_stop() was called
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  int32_t rank() const { return topology_.rank; }
  // Where this process stands in a process set and in the job; false if there is no such set.
  bool locate(uint32_t process_set, sirtaki_position* position) const;

  void submit(const sirtaki_request& request);
  // Submits and waits, as one: when the role is free the caller takes it first, so no other thread wakes up.
  // `long_wait`, if given, runs some times a second while the caller waits for peers in the midst of a batch.
  Outcome submit_and_wait(const sirtaki_request& request, const std::function<bool()>& condition,
                          const LongWaitAction* long_wait = nullptr);

  // Waits until `condition` holds; it is asked by the waiting thread and must be cheap. timeout_ns < 0: for
  // ever. With a timeout the caller does not drive, for it could not leave a batch half done.
  Outcome wait(const std::function<bool()>& condition, int64_t timeout_ns,
               const LongWaitAction* long_wait = nullptr);
  // Body of the coordinator thread; returns kRare or kStopped.
  Outcome run_coordinator();
  void request_stop();

  // Rare events (rank 0) and their decisions; see sequencer.h.
  bool take_rare_event(RareEvent* event);
  void assign_name(const std::string& scoped_name);
  void assign_signature(const std::string& signature);
  void refuse(Key key, int32_t code, const std::string& text);
  std::string describe(Key key);
  // Rank 0: what waits for ranks; see sequencer.h.
  std::vector<Incomplete> incomplete() const;

  // Leaving: announce it, then wait for has_left().
  void leave();
  // Whether this rank may end: it has left, and so have all whom it serves as agent or sequencer.
  bool may_end() const;
  // Whether the job is over: all ranks have left, or one has failed.
  bool all_left() const;
  bool failed() const { return segment_ && segment_->failed(); }
  int32_t failed_rank() const { return segment_->failed_rank(); }
  int32_t failure_code() const { return segment_->failure_code(); }
  std::string failure_text() const { return segment_->failure_text(); }
  // Tells the whole job that this rank has failed, or has found it to (`code`: sirtaki_error). Returns
  // whether it was the first failure.
  bool announce_failure(const std::string& text, int32_t code = SIRTAKI_RANKS_FAILED);
  // Sends out what is queued and ends the relay thread. The engine is unusable afterwards.
  void close();
  // In a forked child: lets go of the parent's descriptors without a word to anybody.
  void abandon_after_fork();

  const std::shared_ptr<Metrics>& metrics() const { return metrics_; }

 private:
  struct Tensor {
    const char* input;
    char* output;
    std::vector<int64_t> dims;
    size_t bytes;
  };
  struct Request {
    int32_t kind;
    int32_t reduce_op;
    int32_t dtype;
    int32_t root_rank;
    uint32_t process_set;
    double prescale_factor;
    double postscale_factor;
    std::string name;  // empty: unnamed
    std::string signature;
    std::vector<Tensor> tensors;
    std::vector<int64_t> values;
    void* context;
    void* (*allocate_output)(void*, int32_t, const int64_t*, int32_t);
    void (*set_result)(void*, int64_t);
    void (*done)(void*, int32_t, const char*);
    Key key = 0;
    int32_t error = SIRTAKI_OK;
    std::string message;
    TimelineTag tag;
  };
  using RequestPtr = std::unique_ptr<Request>;
  struct NameState {
    uint32_t number = 0;  // 0: not assigned, or forgotten
    bool asked = false;   // for the number
    bool in_flight = false;
    Request* waiting = nullptr;  // for the number
  };
  struct SignatureState {
    uint32_t number = 0;
    bool asked = false;
    std::vector<Request*> waiting;
  };

  struct ProcessSet {
    std::vector<int32_t> ranks;
    SetLayout layout;  // if this rank is a member
    bool is_member = false;
    uint64_t unnamed_calls = 0;
  };

  static RequestPtr copy_request(const sirtaki_request& request);
  static void finish(RequestPtr request);

  // Submission (under mutex_).
  // What is wrong with the request on this rank's side, empty if nothing is.
  std::string fault_of(const sirtaki_request& request) const;
  std::string fault_of_values(const sirtaki_request& request, const ProcessSet& set) const;
  void file(RequestPtr request, std::vector<RequestPtr>* refused);
  void send_submit_or_wait(RequestPtr request);
  void send_submit(RequestPtr request);
  void send_join_when_due();
  void run_alone(RequestPtr request);
  void send_up(Record type, std::string_view payload);
  bool flush_backlog();
  void knock_sequencer();

  // Driving (by the holder of the role).
  bool take_role();
  void release_role();
  struct RoleHolder {
    explicit RoleHolder(Engine* holder) : engine(holder) {}
    ~RoleHolder() { engine->release_role(); }
    RoleHolder(const RoleHolder&) = delete;
    RoleHolder& operator=(const RoleHolder&) = delete;
    Engine* engine;
  };
  Outcome drive(const std::function<bool()>& condition, const LongWaitAction* long_wait);
  bool step();
  bool sequence();
  bool write_log();
  void read_entry(Record type, const std::string& payload);
  void on_assign(bool is_name, uint32_t number, std::string_view bytes);
  void on_forget_name(uint32_t number, std::string_view bytes);
  void on_forget_signature(uint32_t number, std::string_view bytes);
  void on_joined(int32_t last_rank);
  void on_error(const ErrorHeader& header, std::string_view text);
  void on_execute(const std::string& payload);

  // A batch. `layout`: the members that take part; `payloads`: see ExecuteHeader.
  struct Batch {
    uint64_t sequence;
    std::vector<int32_t> members;  // of the set, those that have joined too
    SetLayout layout;
    std::vector<int64_t> payloads;
    std::vector<RequestPtr> requests;
    int64_t decided_ns = 0;  // see ExecuteHeader
  };
  // For the metrics and the timeline; see engine_observation.cc.
  static uint64_t bytes_of(const Request& request);
  static void observe_submission(Request* request);
  void observe_batch(const Batch& batch, const PhaseTimes& times, uint64_t waited_before_ns);
  static void observe_end(Request* request);
  void execute(Batch* batch);
  bool run(const Batch& batch);
  static Scaling scaling_of(const Batch& batch);
  bool run_allreduce(const Batch& batch);
  bool run_adasum(const Batch& batch);
  bool run_reducescatter(const Batch& batch);
  bool run_allgather(const Batch& batch);
  bool run_alltoall(const Batch& batch);
  bool run_broadcast(const Batch& batch);
  void add_process_set(const Batch& batch);
  void remove_process_set(const Batch& batch);
  char* allocate(Request* request, size_t tensor, const std::vector<int64_t>& rows, size_t row_bytes);
  bool has_work() const;
  bool has_rare();
  void fail_all(int32_t code, const std::string& text);
  RequestPtr take_in_flight(Key key);
  void complete(std::vector<RequestPtr>* requests);
  void fail(std::vector<RequestPtr>* requests);
  void report_broken(const std::string& what);
  void wake_waiters();
  void wake_coordinator();

  Topology topology_;
  int64_t spin_ns_;
  SetLayout world_;
  LongWait long_wait_;
  std::unique_ptr<Segment> segment_;  // null in a job of one rank
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<Sequencer> sequencer_;  // rank 0 of a job of several ranks
  mutable std::mutex sequencer_mutex_;    // the driver's steps against decisions from Python
  std::deque<LogEntry> log_backlog_;      // rank 0: entries that found the log full
  std::shared_ptr<Metrics> metrics_;

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, NameState> names_;
  std::unordered_map<std::string, SignatureState> signatures_;
  std::unordered_map<Key, RequestPtr> in_flight_;
  std::unordered_map<Request*, RequestPtr> unassigned_;  // wait for the number of their name or signature
  std::vector<std::pair<Record, std::string>> up_backlog_;
  std::atomic<bool> has_up_backlog_{false};
  std::unordered_map<uint32_t, ProcessSet> sets_;  // changed by the driver only, which may read it unlocked
  uint32_t next_set_alone_ = 1;                    // in a job of one rank
  RequestPtr joining_;                             // this rank's join
  bool join_sent_ = false;
  int32_t closed_error_ = SIRTAKI_OK;  // new requests end with this
  std::string closed_text_;

  std::atomic<uint32_t> role_{0};
  std::atomic<bool> coordinator_parked_{false};  // sleeps, and the holder of the role has silenced its bell
  std::atomic<uint32_t> waiters_word_{0};        // counts completions and releases of the role
  std::atomic<uint32_t> num_waiters_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> own_left_{false};
  std::atomic<int32_t> num_left_{0};  // LEFT entries read
  std::atomic<bool> failure_handled_{false};
  std::string payload_;  // the driver's buffer
};

}  // namespace sirtaki

#endif  // SIRTAKI_ENGINE_H_
