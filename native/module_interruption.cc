#include "module_interruption.h"

#include <csignal>

#include "platform.h"

namespace py = pybind11;

namespace sirtaki {
namespace {

// How long a batch may take to end after Ctrl-C; one that moves at all ends sooner.
constexpr int64_t kGraceNs = 500 * 1000 * 1000;

// Whether Python's own handler of Ctrl-C is the only one that can run. Nothing here may execute Python code:
// the interpreter would run the handlers on the way.
bool only_pythons_own_handlers() {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "_signal");
  if (module == nullptr) return false;
  const auto signals = py::reinterpret_borrow<py::object>(module);
  const py::object get = signals.attr("getsignal");
  const py::object own = signals.attr("default_int_handler");
  for (int number = 1; number < NSIG; ++number) {
    const py::object handler = get(number);
    // The default action and being ignored are numbers; None is a handler that is not Python's.
    if (!handler.is_none() && !PyLong_Check(handler.ptr()) && !handler.is(own)) return false;
  }
  return true;
}

}  // namespace

Interruption::Interruption(Engine* engine) : engine_(engine), action_([this] { on_long_wait(); }) {}

void Interruption::on_long_wait() {
  if (!error_) {
    const py::gil_scoped_acquire gil;
    if (!only_pythons_own_handlers() || PyErr_CheckSignals() == 0) return;
    error_ = std::make_unique<py::error_already_set>();
    raised_ns_ = now_ns();
  } else if (now_ns() - raised_ns_ >= kGraceNs) {
    engine_->announce_failure("rank " + std::to_string(engine_->rank()) +
                              " was interrupted (Ctrl-C) while it exchanged data with ranks that did not "
                              "answer, and has given up the job.");
  }
}

void Interruption::rethrow() const {
  if (error_) throw py::error_already_set(*error_);
}

}  // namespace sirtaki
