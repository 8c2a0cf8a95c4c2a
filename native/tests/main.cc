// The native tests: the engine's C++ without Python around it, so that sanitizers see all of it.
// Usage: native_tests [part of test names]
#include <string_view>

#include "check.h"

namespace sirtaki::testing {

void add_control_tests(Suite* suite);
void add_kernel_tests(Suite* suite);
void add_segment_tests(Suite* suite);
void add_job_tests(Suite* suite);
void add_ending_tests(Suite* suite);
void add_observation_tests(Suite* suite);

}  // namespace sirtaki::testing

int main(int argc, char** argv) {
  sirtaki::testing::Suite suite;
  add_control_tests(&suite);
  add_kernel_tests(&suite);
  add_segment_tests(&suite);
  add_job_tests(&suite);
  add_ending_tests(&suite);
  add_observation_tests(&suite);
  return suite.run(argc > 1 ? argv[1] : std::string_view());
}
