#include "signature.h"

#include "dtypes.h"
#include "messages.h"

namespace sirtaki {

int64_t Signature::num_bytes() const {
  int64_t elements = 0;
  for (const auto& shape : shapes) {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim < 0 ? 1 : dim;
    elements += n;
  }
  return elements * static_cast<int64_t>(dtype_size(dtype));
}

std::string encode_signature(const sirtaki_request& request) {
  const bool reduces = request.kind == SIRTAKI_ALLREDUCE;
  std::string out;
  Writer writer(&out);
  writer.value(request.kind)
      .value(reduces ? request.reduce_op : int32_t{0})
      .value(request.kind == SIRTAKI_BARRIER ? int32_t{0} : request.dtype)
      .value(request.kind == SIRTAKI_BROADCAST ? request.root_rank : int32_t{0})
      .value(reduces ? request.prescale_factor : 1.0)
      .value(reduces ? request.postscale_factor : 1.0)
      .value(request.num_tensors);
  for (int32_t t = 0; t < request.num_tensors; ++t) {
    const sirtaki_tensor& tensor = request.tensors[t];
    writer.value(tensor.num_dims);
    for (int32_t d = 0; d < tensor.num_dims; ++d) {
      const bool free = request.kind == SIRTAKI_ALLGATHER && d == 0;
      writer.value(free ? int64_t{-1} : tensor.dims[d]);
    }
  }
  return out;
}

Signature decode_signature(std::string_view bytes) {
  Reader reader(bytes);
  Signature s;
  s.kind = reader.value<int32_t>();
  s.reduce_op = reader.value<int32_t>();
  s.dtype = reader.value<int32_t>();
  s.root_rank = reader.value<int32_t>();
  s.prescale_factor = reader.value<double>();
  s.postscale_factor = reader.value<double>();
  s.shapes.resize(static_cast<size_t>(reader.value<int32_t>()));
  for (auto& shape : s.shapes) {
    shape.resize(static_cast<size_t>(reader.value<int32_t>()));
    for (int64_t& dim : shape) dim = reader.value<int64_t>();
  }
  return s;
}

std::string fusion_class(const Signature& s) {
  if (s.kind != SIRTAKI_ALLREDUCE) return {};
  std::string out;
  Writer(&out)
      .value(s.kind)
      .value(s.reduce_op)
      .value(s.dtype)
      .value(s.prescale_factor)
      .value(s.postscale_factor);
  return out;
}

}  // namespace sirtaki
