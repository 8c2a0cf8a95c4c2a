// Sizes of the types of engine_abi.h and the properties that the engine asks of them.
#ifndef SIRTAKI_DTYPES_H_
#define SIRTAKI_DTYPES_H_

#include <cstddef>
#include <cstdint>

#include "engine_abi.h"

namespace sirtaki {

// Bytes per element; 0 for a number that is no type.
inline size_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case SIRTAKI_BOOL:
    case SIRTAKI_UINT8:
    case SIRTAKI_INT8:
      return 1;
    case SIRTAKI_UINT16:
    case SIRTAKI_INT16:
    case SIRTAKI_FLOAT16:
    case SIRTAKI_BFLOAT16:
      return 2;
    case SIRTAKI_UINT32:
    case SIRTAKI_INT32:
    case SIRTAKI_FLOAT32:
      return 4;
    case SIRTAKI_UINT64:
    case SIRTAKI_INT64:
    case SIRTAKI_FLOAT64:
    case SIRTAKI_COMPLEX64:
      return 8;
    case SIRTAKI_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

}  // namespace sirtaki

#endif  // SIRTAKI_DTYPES_H_
