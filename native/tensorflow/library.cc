// What happens when TensorFlow loads the library: the ops and kernels are registered.
//
// It must happen while tf.load_op_library runs, which watches the registry to make the Python functions; a
// problem cannot be thrown through dlopen, so it is kept for Python to ask.
#include <string>

#include "kernels.h"
#include "op_definitions.h"
#include "position.h"
#include "tf_c_api.h"
#include "xla_calls.h"

namespace sirtaki::tensorflow {
namespace {

std::string register_everything() {
  std::string problem = load_tf_api();
  if (problem.empty()) problem = register_op_definitions();
  if (problem.empty()) problem = register_kernels();
  if (problem.empty()) problem = register_position_kernel();
  return problem;
}

const std::string load_problem = register_everything();
// XLA looks targets up in a registry of its own; without it everything but compiled programs works.
const std::string xla_problem = load_problem.empty() ? register_xla_target() : load_problem;

}  // namespace
}  // namespace sirtaki::tensorflow

// An empty text if the library is usable, else the reason why not.
extern "C" __attribute__((visibility("default"))) const char* sirtaki_ops_load_problem() {
  return sirtaki::tensorflow::load_problem.c_str();
}

// An empty text if programs that XLA compiles can call collectives, else the reason why not.
extern "C" __attribute__((visibility("default"))) const char* sirtaki_ops_xla_problem() {
  return sirtaki::tensorflow::xla_problem.c_str();
}
