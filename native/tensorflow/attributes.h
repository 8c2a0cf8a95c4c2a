// An operation's attributes, as its kernel reads them when it is made.
#ifndef SIRTAKI_TENSORFLOW_ATTRIBUTES_H_
#define SIRTAKI_TENSORFLOW_ATTRIBUTES_H_

#include <stdint.h>
#include <string.h>

#include <string>

#include "tf_c_api.h"

namespace sirtaki::tensorflow {

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction)
      : construction_(construction), status_(new_status()) {}
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  // TensorFlow looks at the failure after the kernel's creation; the first one counts.
  ~Attributes() {
    if (!ok(status_)) tf().OpKernelConstruction_Failure(construction_, status_.get());
  }

  int64_t integer(const char* name) {
    int64_t value = 0;
    if (ok(status_)) tf().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    return value;
  }
  int32_t int32(const char* name) { return static_cast<int32_t>(integer(name)); }
  double bits_of_double(const char* name) {
    const int64_t bits = integer(name);
    double value;
    static_assert(sizeof(value) == sizeof(bits), "the attribute holds a float64");
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  int type(const char* name) {
    int value = 0;
    if (ok(status_)) tf().OpKernelConstruction_GetAttrType(construction_, name, &value, status_.get());
    return value;
  }
  std::string text(const char* name) {
    int32_t list_size = 0, bytes = 0;
    if (ok(status_)) {
      tf().OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
    }
    if (!ok(status_) || bytes <= 0) return "";
    std::string value(static_cast<size_t>(bytes), '\0');
    tf().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
    return value;
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_ATTRIBUTES_H_
