#include "module_observability.h"

#include <string>
#include <utility>
#include <vector>

#include "log.h"
#include "timeline.h"

namespace py = pybind11;

namespace sirtaki {
namespace {

template <typename Counts>
py::list as_list(const Counts& counts) {
  py::list out;
  for (const Count& count : counts) out.append(count.load(std::memory_order_relaxed));
  return out;
}

}  // namespace

py::dict metrics_as_dict(const Metrics& metrics) {
  py::list kinds;
  for (const Metrics::Kind& kind : metrics.kinds) {
    kinds.append(py::make_tuple(kind.calls.load(), kind.tensors.load(), kind.bytes.load()));
  }
  py::dict out;
  out["kinds"] = kinds;
  out["batches"] = as_list(metrics.batches);
  out["batches_begun"] = metrics.batches_begun.load();
  out["cache_hits"] = metrics.cache_hits.load();
  out["cache_misses"] = metrics.cache_misses.load();
  out["times_last"] = as_list(metrics.times_last);
  out["waited_for_ns"] = as_list(metrics.waited_for_ns);
  out["data_wait_ns"] = as_list(metrics.data_wait_ns);
  return out;
}

void bind_observability(py::module_* m) {
  m->def("start_timeline", [](int fd, int32_t rank, std::string header, bool mark_batches) {
    return Timeline::instance().start(FileDescriptor(fd), rank, std::move(header), mark_batches);
  });
  m->def(
      "stop_timeline", [] { return Timeline::instance().stop(); }, py::call_guard<py::gil_scoped_release>());
  m->def("abandon_timeline", [] { Timeline::instance().abandon_after_fork(); });
  m->def("open_log", [] { message_log().open(); });
  m->def("close_log", [] { message_log().close(); });
  m->def("write_log",
         [](int32_t level, std::string text) { log_message(static_cast<LogLevel>(level), std::move(text)); });
  m->def("take_log_message", []() -> py::object {
    LogMessage message;
    bool found;
    {
      const py::gil_scoped_release release;
      found = message_log().take(&message);
    }
    if (!found) return py::none();
    // The text may quote what another rank has sent.
    return py::make_tuple(static_cast<int32_t>(message.level), py::bytes(message.text));
  });
}

}  // namespace sirtaki
