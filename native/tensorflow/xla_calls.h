// Collectives inside programs that XLA has compiled.
#ifndef SIRTAKI_TENSORFLOW_XLA_CALLS_H_
#define SIRTAKI_TENSORFLOW_XLA_CALLS_H_

#include <string>

namespace sirtaki::tensorflow {

// Registers the custom-call target "sirtaki_collective". Returns what is wrong, empty if nothing is; without
// XLA's registry only compiled programs cannot call collectives.
std::string register_xla_target();

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_XLA_CALLS_H_
