// The kernel of SirtakiPosition.
#ifndef SIRTAKI_TENSORFLOW_POSITION_H_
#define SIRTAKI_TENSORFLOW_POSITION_H_

#include <string>

namespace sirtaki::tensorflow {

// Returns an empty text, or TensorFlow's reason for refusing the kernel.
std::string register_position_kernel();

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_POSITION_H_
