// A whole job in one process: an engine per rank with its coordinator thread, hosts joined by sockets and a
// fake MPI. Everything but the fake is what runs in production; ranks are threads here instead of processes.
#ifndef SIRTAKI_TESTS_JOB_H_
#define SIRTAKI_TESTS_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../engine.h"
#include "fake_mpi.h"

namespace sirtaki::testing {

struct JobOptions {
  std::vector<int32_t> host_of;  // by rank
  int64_t fusion_threshold = 1 << 20;
  size_t cache_capacity = 1 << 10;
  int64_t spin_ns = 0;
  uint64_t slot_bytes = 1 << 16;
  uint64_t up_ring_bytes = 1 << 16;
  uint64_t log_ring_bytes = 1 << 16;
  // After a failure between hosts an engine lets go of its buffers, for a real MPI may still write to them:
  // not a leak to report.
  bool will_fail = false;
};

// A request in flight or done. Its buffers are its own.
struct Call {
  explicit Call(size_t bytes = 0) : input(bytes), output(bytes) {}

  std::vector<char> input;
  std::vector<char> output;
  std::vector<int64_t> rows;  // allgather
  size_t row_bytes = 0;       // allgather
  int32_t error = SIRTAKI_OK;
  std::string message;
  std::atomic<int> times_done{0};

  bool done() const { return times_done.load(std::memory_order_acquire) != 0; }
};

// What a test says about a request; the default is a sum of float32.
struct Spec {
  const char* name = nullptr;
  int32_t kind = SIRTAKI_ALLREDUCE;
  int32_t reduce_op = SIRTAKI_SUM;
  int32_t dtype = SIRTAKI_FLOAT32;
  int32_t root_rank = 0;
};

class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();  // stops the coordinators; ranks that have not left are dropped like processes that die
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int32_t size() const { return static_cast<int32_t>(options_.host_of.size()); }
  Engine& engine(int32_t rank) { return *ranks_[static_cast<size_t>(rank)].engine; }

  // Runs `body` for each rank, each on a thread of its own, and returns when all have ended.
  void on_every_rank(const std::function<void(int32_t rank)>& body);
  // What shutdown does: leaves, waits until the rank may end, ends its threads and frees its engine.
  void leave(int32_t rank);
  void leave_all() {
    on_every_rank([this](int32_t rank) { leave(rank); });
  }
  // Ends a rank's coordinator, so that nothing drives its engine but callers.
  void stop(int32_t rank);
  // Ends a rank's threads and closes its sockets without a word, as the kernel does for a process that died.
  void drop(int32_t rank);

  std::unique_ptr<Call> submit(int32_t rank, const Spec& spec, std::unique_ptr<Call> call,
                               const std::vector<int64_t>& shape);
  std::unique_ptr<Call> submit_floats(int32_t rank, const Spec& spec, const std::vector<float>& values);
  void wait(int32_t rank, const Call& call);

 private:
  struct Rank {
    std::unique_ptr<Engine> engine;
    std::thread coordinator;
  };
  void coordinate(int32_t rank);
  void decide(Engine* engine, const RareEvent& event);

  JobOptions options_;
  FakeMpi mpi_;
  std::vector<Rank> ranks_;
};

std::vector<float> floats(const std::vector<char>& bytes);

}  // namespace sirtaki::testing

#endif  // SIRTAKI_TESTS_JOB_H_
