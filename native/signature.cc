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

size_t Signature::num_payloads(size_t num_members) const {
  if (kind == SIRTAKI_ALLGATHER) return shapes.size();
  return kind == SIRTAKI_ALLTOALL ? num_members : 0;
}

std::string encode_signature(const sirtaki_request& request) {
  const bool reduces = request.kind == SIRTAKI_ALLREDUCE || request.kind == SIRTAKI_REDUCESCATTER;
  const bool about_sets =
      request.kind == SIRTAKI_ADD_PROCESS_SET || request.kind == SIRTAKI_REMOVE_PROCESS_SET;
  const bool free_rows = request.kind == SIRTAKI_ALLGATHER || request.kind == SIRTAKI_ALLTOALL;
  const int32_t num_values = about_sets ? request.num_values : 0;
  std::string out;
  Writer writer(&out);
  writer.value(request.kind)
      .value(reduces ? request.reduce_op : int32_t{0})
      .value(request.num_tensors == 0 ? int32_t{0} : request.dtype)
      .value(request.kind == SIRTAKI_BROADCAST ? request.root_rank : int32_t{0})
      .value(reduces ? request.prescale_factor : 1.0)
      .value(reduces ? request.postscale_factor : 1.0)
      .value(num_values)
      .value(request.num_tensors);
  for (int32_t v = 0; v < num_values; ++v) writer.value(request.values[v]);
  for (int32_t t = 0; t < request.num_tensors; ++t) {
    const sirtaki_tensor& tensor = request.tensors[t];
    writer.value(tensor.num_dims);
    for (int32_t d = 0; d < tensor.num_dims; ++d) {
      writer.value(free_rows && d == 0 ? int64_t{-1} : tensor.dims[d]);
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
  s.values.resize(static_cast<size_t>(reader.value<int32_t>()));
  s.shapes.resize(static_cast<size_t>(reader.value<int32_t>()));
  for (int64_t& value : s.values) value = reader.value<int64_t>();
  for (auto& shape : s.shapes) {
    shape.resize(static_cast<size_t>(reader.value<int32_t>()));
    for (int64_t& dim : shape) dim = reader.value<int64_t>();
  }
  return s;
}

std::string fusion_class(const Signature& s) {
  const bool fuses = s.kind == SIRTAKI_ALLREDUCE || s.kind == SIRTAKI_REDUCESCATTER;
  if (!fuses) return {};
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
