// Reductions of one contiguous run of elements from several ranks, always in the order of `sources`.
//
// Guarantees, whatever the processor, the alignment and the length:
//   * result[i] depends on the i-th elements only, and is computed the same way for every i;
//   * no contraction to FMA (compiler flag), 16-bit floats accumulate in 32 bits, integers wrap;
//   * `result` may be one of the sources.
// The calling thread must be in DefaultFloatMode (platform.h).
#ifndef SIRTAKI_KERNELS_H_
#define SIRTAKI_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sirtaki {

struct Scaling {
  double prescale = 1.0;   // each element is multiplied first; floating and complex types only
  int64_t divisor = 1;     // the sum is divided: the number of ranks, for Average
  double postscale = 1.0;  // and multiplied last; floating and complex types only
};

// The kernels of one type. A *partial* is a sum in the type that the type accumulates in.
struct Kernels {
  size_t element_bytes;
  size_t partial_bytes;
  // elements -> element
  void (*reduce)(void* result, const void* const* sources, size_t num_sources, size_t n, const Scaling&);
  // elements -> partial (prescale only)
  void (*reduce_partial)(void* result, const void* const* sources, size_t num_sources, size_t n,
                         const Scaling&);
  // partials -> element (divisor and postscale only)
  void (*finish_partials)(void* result, const void* const* sources, size_t num_sources, size_t n,
                          const Scaling&);
};

// nullptr if the operation has no meaning for the type. Adasum has no kernels: it is made of sums.
const Kernels* find_kernels(int32_t dtype, int32_t reduce_op);

// Whether the operation, Adasum too, has a meaning for the type.
bool is_reducible(int32_t dtype, int32_t reduce_op);

}  // namespace sirtaki

#endif  // SIRTAKI_KERNELS_H_
