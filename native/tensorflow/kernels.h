// The kernels of the operations.
#ifndef SIRTAKI_TENSORFLOW_KERNELS_H_
#define SIRTAKI_TENSORFLOW_KERNELS_H_

#include <string>

namespace sirtaki::tensorflow {

// Returns an empty text, or TensorFlow's reason for refusing a kernel.
std::string register_kernels();

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_KERNELS_H_
