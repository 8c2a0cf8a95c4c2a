// sirtaki._native: the engine for Python. Translates only; see collectives/engine.py for its use.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dtypes.h"
#include "engine.h"
#include "engine_abi.h"
#include "module_control_plane.h"
#include "module_interruption.h"
#include "module_observability.h"
#include "watchdog.h"

namespace py = pybind11;

namespace sirtaki {
namespace {

// ---- The engine of this process, as op libraries see it
// -------------------------------------------------------

// Published after init, withdrawn before shutdown; read by submit on any thread.
std::mutex current_mutex;
std::shared_ptr<Engine> current_engine;
// Set in a forked child: the engine's threads and memory stayed with the parent.
std::atomic<bool> forked{false};

// Null if there is none.
std::shared_ptr<Engine> engine_of_process() {
  if (forked.load()) return nullptr;
  const std::lock_guard<std::mutex> lock(current_mutex);
  return current_engine;
}

void submit_from_op_library(const sirtaki_request* request) {
  if (const std::shared_ptr<Engine> engine = engine_of_process()) {
    engine->submit(*request);
  } else {
    request->done(request->context, SIRTAKI_NOT_INITIALIZED,
                  forked.load() ? "this process was forked from a rank and is no part of the job; use "
                                  "multiprocessing's 'spawn' start method and no collectives in children"
                                : "sirtaki is not initialized: call init() first");
  }
}

int32_t locate_for_op_library(int32_t process_set, sirtaki_position* position) {
  const std::shared_ptr<Engine> engine = engine_of_process();
  if (!engine) return SIRTAKI_NOT_INITIALIZED;
  return engine->locate(static_cast<uint32_t>(process_set), position) ? SIRTAKI_OK : SIRTAKI_INVALID_ARGUMENT;
}

constexpr sirtaki_engine_api kEngineApi{SIRTAKI_ABI_VERSION, submit_from_op_library, locate_for_op_library};

// ---- Requests from Python
// ---------------------------------------------------------------------------------------

// What the engine and a Python handle share.
struct Call {
  std::atomic<bool> done{false};
  int32_t error = SIRTAKI_OK;
  std::string message;
  int64_t result = 0;  // of a join, or the number of a new process set
  struct Gathered {
    size_t row_bytes = 0;
    std::vector<int64_t> rows;
    std::unique_ptr<char, decltype(&std::free)> memory{nullptr, &std::free};
    size_t bytes() const {
      size_t total = 0;
      for (int64_t n : rows) total += static_cast<size_t>(n) * row_bytes;
      return total;
    }
  };
  std::vector<Gathered> gathered;  // by tensor, of an allgather or alltoall
};

void* allocate_gathered(void* context, int32_t tensor, const int64_t* rows, int32_t num_members) {
  Call& call = **static_cast<std::shared_ptr<Call>*>(context);
  Call::Gathered& gathered = call.gathered.at(static_cast<size_t>(tensor));
  gathered.rows.assign(rows, rows + num_members);
  void* memory = nullptr;
  if (gathered.bytes() > 0 && posix_memalign(&memory, 64, gathered.bytes()) != 0) return nullptr;
  gathered.memory.reset(static_cast<char*>(memory));
  return memory;
}

void set_result(void* context, int64_t value) {
  (**static_cast<std::shared_ptr<Call>*>(context)).result = value;
}

void finish_call(void* context, int32_t error, const char* message) {
  const std::unique_ptr<std::shared_ptr<Call>> owner(static_cast<std::shared_ptr<Call>*>(context));
  Call& call = **owner;
  call.error = error;
  if (message != nullptr) call.message = message;
  call.done.store(true, std::memory_order_release);
}

// A request from Python in flight or done. It keeps the arrays alive; if Python drops it too early, they move
// to `orphans` until the engine no longer touches them. Both are guarded by the GIL.
class Handle {
 public:
  Handle(std::shared_ptr<Call> call, std::vector<py::array> arrays)
      : call_(std::move(call)), arrays_(std::move(arrays)) {}
  ~Handle() {
    if (!done()) orphans().emplace_back(call_, std::move(arrays_));
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  bool done() const { return call_->done.load(std::memory_order_acquire); }
  int32_t error() const { return call_->error; }
  const std::string& message() const { return call_->message; }
  int64_t result() const { return call_->result; }
  const std::shared_ptr<Call>& call() const { return call_; }

  // Of an allgather or alltoall: what each member has given of a tensor.
  const std::vector<int64_t>& rows(size_t tensor) const { return call_->gathered.at(tensor).rows; }
  // The result as bytes, which the returned array owns.
  py::array take_gathered(size_t tensor) {
    Call::Gathered& gathered = call_->gathered.at(tensor);
    char* memory = gathered.memory.release();
    if (memory == nullptr) return py::array_t<uint8_t>(0);
    return py::array_t<uint8_t>({gathered.bytes()}, {1}, reinterpret_cast<uint8_t*>(memory),
                                py::capsule(memory, &std::free));
  }

  static void sweep_orphans() {
    auto& all = orphans();
    for (size_t i = 0; i < all.size();) {
      if (all[i].first->done.load(std::memory_order_acquire)) {
        std::swap(all[i], all.back());
        all.pop_back();
      } else {
        ++i;
      }
    }
  }

 private:
  using Orphan = std::pair<std::shared_ptr<Call>, std::vector<py::array>>;
  static std::vector<Orphan>& orphans() {
    static auto* all = new std::vector<Orphan>();  // never destroyed: Python may be gone by then
    return *all;
  }

  std::shared_ptr<Call> call_;
  std::vector<py::array> arrays_;
};

struct CallSpec {
  int32_t kind, reduce_op, dtype, root_rank, process_set;
  double prescale_factor, postscale_factor;
  std::optional<std::string> name;
  std::vector<int64_t> values;
};

// Builds the C request and hands it to `use`, which must submit it.
template <typename Use>
std::unique_ptr<Handle> make_call(const CallSpec& spec, std::vector<py::array> inputs,
                                  std::vector<py::array> outputs, const Use& use) {
  Handle::sweep_orphans();
  auto call = std::make_shared<Call>();
  std::vector<std::vector<int64_t>> dims(inputs.size());
  std::vector<sirtaki_tensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (py::ssize_t d = 0; d < inputs[i].ndim(); ++d) dims[i].push_back(inputs[i].shape(d));
    void* output = i < outputs.size() ? outputs[i].mutable_data() : nullptr;
    tensors.push_back({inputs[i].data(), output, dims[i].data(), static_cast<int32_t>(dims[i].size())});
    const bool gathers = spec.kind == SIRTAKI_ALLGATHER || spec.kind == SIRTAKI_ALLTOALL;
    if (!gathers) continue;
    Call::Gathered& gathered = call->gathered.emplace_back();
    gathered.row_bytes = dtype_size(spec.dtype);
    for (size_t d = 1; d < dims[i].size(); ++d) gathered.row_bytes *= static_cast<size_t>(dims[i][d]);
  }
  sirtaki_request request{};
  request.kind = spec.kind;
  request.reduce_op = spec.reduce_op;
  request.dtype = spec.dtype;
  request.root_rank = spec.root_rank;
  request.process_set = spec.process_set;
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.prescale_factor = spec.prescale_factor;
  request.postscale_factor = spec.postscale_factor;
  request.name = spec.name ? spec.name->c_str() : nullptr;
  request.tensors = tensors.data();
  request.values = spec.values.data();
  request.num_values = static_cast<int32_t>(spec.values.size());
  request.context = new std::shared_ptr<Call>(call);
  request.allocate_output = allocate_gathered;
  request.set_result = set_result;
  request.done = finish_call;
  std::vector<py::array> keep = std::move(inputs);
  keep.insert(keep.end(), outputs.begin(), outputs.end());
  auto handle = std::make_unique<Handle>(call, std::move(keep));
  {
    const py::gil_scoped_release release;
    use(request, [&call] { return call->done.load(std::memory_order_acquire); });
  }
  return handle;
}

// Waits without the GIL until the condition holds or the time is over (negative: never); Python's signal
// handlers run in between and may raise.
template <typename Condition>
Outcome wait_with_signals(Engine* engine, const Condition& condition, int64_t timeout_ns) {
  const int64_t deadline_ns = now_ns() + timeout_ns;
  const Interruption interruption(engine);
  for (;;) {
    Outcome outcome;
    {
      const py::gil_scoped_release release;
      const int64_t left_ns = timeout_ns < 0 ? -1 : std::max<int64_t>(deadline_ns - now_ns(), 0);
      outcome = engine->wait(condition, left_ns, interruption.action());
    }
    interruption.rethrow();
    if (outcome != Outcome::kInterrupted) return outcome;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

std::vector<RelayLinks::Peer> make_peers(const std::vector<std::tuple<int32_t, int, int>>& peers) {
  std::vector<RelayLinks::Peer> out;
  for (const auto& [rank, socket, pidfd] : peers) {
    out.push_back({rank, FileDescriptor(socket), FileDescriptor(pidfd)});
  }
  return out;
}

std::vector<RelayLinks::Host> make_hosts(const std::vector<std::pair<int32_t, int>>& hosts) {
  std::vector<RelayLinks::Host> out;
  for (const auto& [agent, socket] : hosts) out.push_back({agent, FileDescriptor(socket)});
  return out;
}

std::shared_ptr<Engine> make_engine(int32_t rank, std::vector<int32_t> host_of,
                                    std::vector<int32_t> local_rank_of, int64_t fusion_threshold,
                                    size_t cache_capacity, int64_t spin_ns, int64_t unresponsive_ns,
                                    uint32_t num_slots, uint64_t slot_bytes, int segment_fd, int doorbell_fd,
                                    const std::vector<std::tuple<int32_t, int, int>>& peers,
                                    const std::vector<std::pair<int32_t, int>>& hosts,
                                    std::vector<std::string> labels, const std::vector<uintptr_t>& mpi) {
  EngineOptions options;
  options.topology = {rank, std::move(host_of), std::move(local_rank_of)};
  options.fusion_threshold = fusion_threshold;
  options.cache_capacity = cache_capacity;
  options.spin_ns = spin_ns;
  options.unresponsive_ns = unresponsive_ns;
  options.shape.local_size = static_cast<uint32_t>(options.topology.local_size());
  options.shape.num_slots = num_slots;
  options.shape.slot_bytes = slot_bytes;
  options.segment = FileDescriptor(segment_fd);
  options.doorbell = FileDescriptor(doorbell_fd);
  options.links.peers = make_peers(peers);
  options.links.hosts = make_hosts(hosts);
  options.labels = std::move(labels);
  if (!mpi.empty()) {
    options.has_mpi = true;
    options.mpi.isend = reinterpret_cast<decltype(options.mpi.isend)>(mpi.at(0));
    options.mpi.irecv = reinterpret_cast<decltype(options.mpi.irecv)>(mpi.at(1));
    options.mpi.test = reinterpret_cast<decltype(options.mpi.test)>(mpi.at(2));
    options.mpi.comm = static_cast<intptr_t>(mpi.at(3));
    options.mpi.byte_type = static_cast<intptr_t>(mpi.at(4));
  }
  const py::gil_scoped_release release;
  return std::make_shared<Engine>(std::move(options));
}

}  // namespace
}  // namespace sirtaki

PYBIND11_MODULE(_native, m) {
  using namespace sirtaki;
  m.doc() = "The native engine; its Python face is sirtaki.engine.";

  py::class_<Handle>(m, "Handle")
      .def_property_readonly("done", &Handle::done)
      .def_property_readonly("error", &Handle::error)
      .def_property_readonly("message", &Handle::message)
      .def_property_readonly("result", &Handle::result)
      .def("rows", &Handle::rows, py::arg("tensor"))
      .def("take_gathered", &Handle::take_gathered, py::arg("tensor"));

  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def(py::init(&make_engine), py::kw_only(), py::arg("rank"), py::arg("host_of"),
           py::arg("local_rank_of"), py::arg("fusion_threshold"), py::arg("cache_capacity"),
           py::arg("spin_ns"), py::arg("unresponsive_ns") = 0, py::arg("num_slots") = 0,
           py::arg("slot_bytes") = 0, py::arg("segment_fd") = -1, py::arg("doorbell_fd") = -1,
           py::arg("peers") = std::vector<std::tuple<int32_t, int, int>>{},
           py::arg("hosts") = std::vector<std::pair<int32_t, int>>{},
           py::arg("labels") = std::vector<std::string>{}, py::arg("mpi") = std::vector<uintptr_t>{})
      .def(
          "submit",
          [](const std::shared_ptr<Engine>& engine, int32_t kind, int32_t reduce_op, int32_t dtype,
             int32_t root_rank, int32_t process_set, double prescale, double postscale,
             std::optional<std::string> name, std::vector<py::array> inputs, std::vector<py::array> outputs,
             std::vector<int64_t> values, bool wait) {
            const CallSpec spec{kind,     reduce_op, dtype,           root_rank,        process_set,
                                prescale, postscale, std::move(name), std::move(values)};
            Outcome outcome = Outcome::kDone;
            const Interruption interruption(engine.get());
            auto handle = make_call(spec, std::move(inputs), std::move(outputs),
                                    [&](const sirtaki_request& request, const auto& is_done) {
                                      if (wait) {
                                        outcome =
                                            engine->submit_and_wait(request, is_done, interruption.action());
                                      } else {
                                        engine->submit(request);
                                      }
                                    });
            interruption.rethrow();
            if (outcome == Outcome::kInterrupted) {
              if (PyErr_CheckSignals() != 0) throw py::error_already_set();
              const auto call = handle->call();
              wait_with_signals(engine.get(), [&] { return call->done.load(); }, -1);
            }
            return handle;
          },
          py::arg("kind"), py::arg("reduce_op"), py::arg("dtype"), py::arg("root_rank"),
          py::arg("process_set"), py::arg("prescale"), py::arg("postscale"), py::arg("name"),
          py::arg("inputs"), py::arg("outputs"), py::arg("values"), py::arg("wait"))
      .def("wait",
           [](const std::shared_ptr<Engine>& engine, const Handle& handle, int64_t timeout_ns) {
             const auto call = handle.call();
             return wait_with_signals(
                        engine.get(), [&] { return call->done.load(); }, timeout_ns) == Outcome::kDone;
           })
      .def("wait_until_may_end",
           [](const std::shared_ptr<Engine>& engine, int64_t timeout_ns) {
             return wait_with_signals(
                        engine.get(), [&] { return engine->may_end(); }, timeout_ns) == Outcome::kDone;
           })
      .def("wait_until_all_left",
           [](const std::shared_ptr<Engine>& engine) {
             wait_with_signals(engine.get(), [&] { return engine->all_left(); }, -1);
           })
      .def("run_coordinator",
           [](const std::shared_ptr<Engine>& engine) {
             const py::gil_scoped_release release;
             return engine->run_coordinator() == Outcome::kRare;
           })
      .def("request_stop", &Engine::request_stop)
      .def("take_rare_event",
           [](Engine& engine) -> py::object {
             RareEvent event;
             if (!engine.take_rare_event(&event)) return py::none();
             return rare_event_as_dict(event);
           })
      .def("assign_name", &Engine::assign_name)
      .def("assign_signature", &Engine::assign_signature)
      .def("refuse", &Engine::refuse)
      .def("describe", &Engine::describe)
      .def("incomplete", [](const Engine& engine) { return incomplete_as_list(engine.incomplete()); })
      .def("leave", &Engine::leave)
      .def("announce_failure", &Engine::announce_failure, py::arg("text"),
           py::arg("code") = static_cast<int32_t>(SIRTAKI_RANKS_FAILED))
      .def_property_readonly("failed", &Engine::failed)
      .def_property_readonly("failed_rank", &Engine::failed_rank)
      .def_property_readonly("failure_code", &Engine::failure_code)
      .def_property_readonly("failure_text", &Engine::failure_text)
      .def("close", &Engine::close, py::call_guard<py::gil_scoped_release>())
      .def("abandon_after_fork", &Engine::abandon_after_fork)
      .def("locate",
           [](const Engine& engine, uint32_t process_set) -> std::pair<int32_t, int32_t> {
             sirtaki_position position{};
             if (!engine.locate(process_set, &position)) throw py::value_error("no such process set");
             return {position.rank, position.size};
           })
      .def_property_readonly("metrics",
                             [](const Engine& engine) { return metrics_as_dict(*engine.metrics()); });

  py::class_<Watchdog>(m, "Watchdog")
      .def(py::init<double, std::string>(), py::arg("seconds"), py::arg("text"))
      .def("cancel", &Watchdog::cancel, py::call_guard<py::gil_scoped_release>());

  m.def("set_current_engine", [](std::shared_ptr<Engine> engine) {
    const std::lock_guard<std::mutex> lock(current_mutex);
    current_engine.swap(engine);
  });
  m.def("mark_forked", [] { forked.store(true); });
  m.def("engine_api_address", [] { return reinterpret_cast<uintptr_t>(&kEngineApi); });
  m.def("segment_bytes", [](uint32_t local_size, uint32_t num_slots, uint64_t slot_bytes) {
    SegmentShape shape{};
    shape.local_size = local_size;
    shape.num_slots = num_slots;
    shape.slot_bytes = slot_bytes;
    return shape.total_bytes();
  });
  bind_control_plane(&m);
  bind_observability(&m);
}
