#include "job.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace sirtaki::testing {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

FileDescriptor copy(const FileDescriptor& fd) { return FileDescriptor(checked(dup(fd.get()), "dup")); }

std::pair<FileDescriptor, FileDescriptor> connected() {
  int ends[2];
  checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

struct Host {
  FileDescriptor segment;
  FileDescriptor doorbell;
  int32_t agent;
  std::vector<int32_t> ranks;
};

// Like the handle of a Python caller: the engine keeps the address of the call as its context.
void finish_call(void* context, int32_t error, const char* message) {
  Call& call = *static_cast<Call*>(context);
  call.error = error;
  if (message != nullptr) call.message = message;
  call.times_done.fetch_add(1, std::memory_order_release);
}

void* allocate_gathered(void* context, int32_t, const int64_t* rows, int32_t num_members) {
  Call& call = *static_cast<Call*>(context);
  call.rows.assign(rows, rows + num_members);
  const int64_t total = std::accumulate(call.rows.begin(), call.rows.end(), int64_t{0});
  call.output.resize(static_cast<size_t>(total) * call.row_bytes);
  return call.output.data();
}

}  // namespace

std::vector<float> floats(const std::vector<char>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

Job::Job(JobOptions options) : options_(std::move(options)), mpi_(size()), ranks_(options_.host_of.size()) {
#if defined(__SANITIZE_ADDRESS__)
  if (options_.will_fail) __lsan_disable();
#endif
  std::vector<Host> hosts;
  std::vector<int32_t> local_rank_of;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const auto h = static_cast<size_t>(options_.host_of[static_cast<size_t>(rank)]);
    if (h == hosts.size()) hosts.push_back({{}, {}, rank, {}});
    local_rank_of.push_back(static_cast<int32_t>(hosts[h].ranks.size()));
    hosts[h].ranks.push_back(rank);
  }
  std::vector<EngineOptions> all(ranks_.size());
  for (size_t h = 0; h < hosts.size(); ++h) {
    Host& host = hosts[h];
    SegmentShape shape{};
    shape.local_size = static_cast<uint32_t>(host.ranks.size());
    shape.num_slots = 4;
    shape.slot_bytes = options_.slot_bytes;
    shape.up_ring_bytes = options_.up_ring_bytes;
    shape.log_ring_bytes = options_.log_ring_bytes;
    host.segment = FileDescriptor(checked(memfd_create("sirtaki-test", MFD_CLOEXEC), "memfd_create"));
    checked(ftruncate(host.segment.get(), static_cast<off_t>(shape.total_bytes())), "ftruncate");
    host.doorbell = FileDescriptor(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"));
    for (int32_t rank : host.ranks) {
      EngineOptions& own = all[static_cast<size_t>(rank)];
      own.topology = {rank, options_.host_of, local_rank_of};
      own.fusion_threshold = options_.fusion_threshold;
      own.cache_capacity = options_.cache_capacity;
      own.spin_ns = options_.spin_ns;
      own.shape = shape;
      own.segment = copy(host.segment);
      own.doorbell = copy(host.doorbell);
      for (int32_t r = 0; r < size(); ++r) own.labels.push_back("rank " + std::to_string(r));
      own.has_mpi = hosts.size() > 1;
      own.mpi = mpi_.table(rank);
      if (rank == host.agent) continue;
      auto [ours, agents] = connected();
      own.links.peers.push_back({host.agent, std::move(ours), {}});
      all[static_cast<size_t>(host.agent)].links.peers.push_back({rank, std::move(agents), {}});
    }
    if (h == 0) continue;
    auto [first, ours] = connected();
    all[0].links.hosts.push_back({host.agent, std::move(first)});
    all[static_cast<size_t>(host.agent)].links.hosts.push_back({0, std::move(ours)});
  }
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].engine = std::make_unique<Engine>(std::move(all[r]));
#if defined(__SANITIZE_ADDRESS__)
  if (options_.will_fail) __lsan_enable();
#endif
  if (size() == 1) return;  // as in Python, a job of one rank has no coordinator
  for (int32_t rank = 0; rank < size(); ++rank) {
    ranks_[static_cast<size_t>(rank)].coordinator = std::thread([this, rank] { coordinate(rank); });
  }
}

Job::~Job() {
  for (int32_t rank = 0; rank < size(); ++rank) drop(rank);
}

// The rules are those of collectives/engine.py; what a disagreement is called is tested there.
void Job::coordinate(int32_t rank) {
  Engine& engine = *ranks_[static_cast<size_t>(rank)].engine;
  while (engine.run_coordinator() == Outcome::kRare) {
    RareEvent event;
    while (engine.take_rare_event(&event)) decide(&engine, event);
  }
}

void Job::decide(Engine* engine, const RareEvent& event) {
  switch (event.kind) {
    case RareEvent::Kind::kNewName:
      return engine->assign_name(event.bytes);
    case RareEvent::Kind::kNewSignature:
      return engine->assign_signature(event.bytes);
    case RareEvent::Kind::kDisagreement:
      return engine->refuse(event.key, SIRTAKI_MISMATCH,
                            "the ranks disagree about " + engine->describe(event.key));
  }
}

void Job::on_every_rank(const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

void Job::leave(int32_t rank) {
  Engine& own = engine(rank);
  own.leave();
  while (own.wait([&own] { return own.may_end(); }, -1) != Outcome::kDone) {
  }
  drop(rank);
}

void Job::stop(int32_t rank) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  own.engine->request_stop();
  if (own.coordinator.joinable()) own.coordinator.join();
}

void Job::drop(int32_t rank) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  if (!own.engine) return;
  stop(rank);
  own.engine->close();
  own.engine.reset();
}

std::unique_ptr<Call> Job::submit(int32_t rank, const Spec& spec, std::unique_ptr<Call> call,
                                  const std::vector<int64_t>& shape) {
  const bool gathers = spec.kind == SIRTAKI_ALLGATHER;
  const sirtaki_tensor tensor{call->input.data(), gathers ? nullptr : call->output.data(), shape.data(),
                              static_cast<int32_t>(shape.size())};
  if (gathers && shape[0] > 0) call->row_bytes = call->input.size() / static_cast<size_t>(shape[0]);
  sirtaki_request request{};
  request.kind = spec.kind;
  request.reduce_op = spec.reduce_op;
  request.dtype = spec.dtype;
  request.root_rank = spec.root_rank;
  request.num_tensors = spec.kind == SIRTAKI_BARRIER ? 0 : 1;
  request.prescale_factor = 1.0;
  request.postscale_factor = 1.0;
  request.name = spec.name;
  request.tensors = &tensor;
  request.context = call.get();
  request.allocate_output = allocate_gathered;
  request.done = finish_call;
  engine(rank).submit(request);
  return call;
}

std::unique_ptr<Call> Job::submit_floats(int32_t rank, const Spec& spec, const std::vector<float>& values) {
  auto call = std::make_unique<Call>(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(call->input.data(), values.data(), call->input.size());
  return submit(rank, spec, std::move(call), {static_cast<int64_t>(values.size())});
}

void Job::wait(int32_t rank, const Call& call) {
  Engine& own = engine(rank);
  while (own.wait([&call] { return call.done(); }, -1) != Outcome::kDone) {
  }
}

}  // namespace sirtaki::testing
