#include "conversions.h"

#include "engine_abi.h"
#include "tf_c_api.h"

namespace sirtaki::tensorflow {

int32_t engine_dtype(int tf_dtype) {
  switch (tf_dtype) {
    case kBool:
      return SIRTAKI_BOOL;
    case kUint8:
      return SIRTAKI_UINT8;
    case kInt8:
      return SIRTAKI_INT8;
    case kUint16:
      return SIRTAKI_UINT16;
    case kInt16:
      return SIRTAKI_INT16;
    case kUint32:
      return SIRTAKI_UINT32;
    case kInt32:
      return SIRTAKI_INT32;
    case kUint64:
      return SIRTAKI_UINT64;
    case kInt64:
      return SIRTAKI_INT64;
    case kHalf:
      return SIRTAKI_FLOAT16;
    case kBfloat16:
      return SIRTAKI_BFLOAT16;
    case kFloat:
      return SIRTAKI_FLOAT32;
    case kDouble:
      return SIRTAKI_FLOAT64;
    case kComplex64:
      return SIRTAKI_COMPLEX64;
    case kComplex128:
      return SIRTAKI_COMPLEX128;
    default:
      return -1;
  }
}

int status_code(int32_t error) {
  switch (error) {
    case SIRTAKI_OK:
      return kOk;
    case SIRTAKI_INVALID_ARGUMENT:
    case SIRTAKI_DUPLICATE_NAME:
      return kInvalidArgument;
    case SIRTAKI_MISMATCH:
    case SIRTAKI_NOT_INITIALIZED:
      return kFailedPrecondition;
    // Not UNAVAILABLE, which TensorFlow turns into INTERNAL on the way out of a tf.function.
    case SIRTAKI_RANKS_FAILED:
    case SIRTAKI_UNRESPONSIVE:
    case SIRTAKI_RANK_LEFT:
    case SIRTAKI_RANK_JOINED:
      return kAborted;
    case SIRTAKI_STALLED:
      return kDeadlineExceeded;
    case SIRTAKI_OUT_OF_MEMORY:
      return kResourceExhausted;
    default:
      return kInternal;
  }
}

}  // namespace sirtaki::tensorflow
