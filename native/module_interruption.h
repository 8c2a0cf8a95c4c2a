// Ctrl-C for a Python caller that drives the engine and waits for peers in the midst of a batch.
//
// Elsewhere a waiting call comes back to run Python's signal handlers and then waits again. In the midst of a
// batch it cannot come back. Python's own handler of Ctrl-C, which only raises KeyboardInterrupt, is run
// there and then; the batch has a moment more to end, then the job is given up and the call raises. Handlers
// of the application wait for the batch's end: they may use Sirtaki, which in the midst of a batch would wait
// for itself.
#ifndef SIRTAKI_MODULE_INTERRUPTION_H_
#define SIRTAKI_MODULE_INTERRUPTION_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "engine.h"
#include "long_wait.h"

namespace sirtaki {

class Interruption {
 public:
  // Costs nothing until a wait is long.
  explicit Interruption(Engine* engine);
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  const LongWaitAction* action() const { return &action_; }
  // With the GIL: raises in Python what a handler has raised meanwhile.
  void rethrow() const;

 private:
  void on_long_wait();

  Engine* engine_;
  LongWaitAction action_;
  std::unique_ptr<pybind11::error_already_set> error_;
  int64_t raised_ns_ = 0;
};

}  // namespace sirtaki

#endif  // SIRTAKI_MODULE_INTERRUPTION_H_
