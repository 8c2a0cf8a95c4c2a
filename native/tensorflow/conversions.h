// The engine's numbers and TensorFlow's, each in terms of the other.
#ifndef SIRTAKI_TENSORFLOW_CONVERSIONS_H_
#define SIRTAKI_TENSORFLOW_CONVERSIONS_H_

#include <stdint.h>

namespace sirtaki::tensorflow {

// TF_DataType to sirtaki_dtype; -1 for a type that the operations' definitions do not let through.
int32_t engine_dtype(int tf_dtype);

// sirtaki_error to TF_Code.
int status_code(int32_t error);

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_CONVERSIONS_H_
