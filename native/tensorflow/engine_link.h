// The op library's one connection to the engine, and its count of what passed through.
#ifndef SIRTAKI_TENSORFLOW_ENGINE_LINK_H_
#define SIRTAKI_TENSORFLOW_ENGINE_LINK_H_

#include <stdint.h>

#include <string>

#include "engine_abi.h"

extern "C" {

// Read by Python through ctypes: keep the order in step with tf_bindings/diagnostics.py.
typedef struct sirtaki_ops_counters {
  int64_t allreduced;       // tensors submitted for an allreduce, those of groups counted one by one
  int64_t allgathered;      // tensors submitted for an allgather
  int64_t broadcast;        // tensors submitted for a broadcast
  int64_t alltoall;         // tensors submitted for an alltoall
  int64_t reducescattered;  // tensors submitted for a reducescatter
  int64_t gradients;        // of all these, those that an optimizer or a tape reduces
  int64_t requests;         // calls of the engine's submit; a group is one
  int64_t in_place;         // outputs that are their input's buffer
  int64_t in_flight;        // requests submitted and not done
  int64_t most_in_flight;   // the largest value of in_flight since the last reset
} sirtaki_ops_counters;

}  // extern "C"

namespace sirtaki::tensorflow {

// The engine's functions, or nullptr before Python has given the address.
const sirtaki_engine_api* engine();

// Whether a tensor of this name is a gradient that an optimizer or a tape reduces.
bool names_gradients(const std::string& name);

void count_submission(int32_t kind, int64_t tensors, int64_t in_place, bool carries_gradients);
void count_completion();

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_ENGINE_LINK_H_
