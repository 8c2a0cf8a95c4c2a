// What must be equal on all ranks for a tensor to be reduced: its signature, as bytes.
//
// Ranks intern the bytes once (the sequencer gives them a number) and then compare numbers, so agreeing costs
// nothing per step. `describe` turns the bytes back into what a person reads in an error.
#ifndef SIRTAKI_SIGNATURE_H_
#define SIRTAKI_SIGNATURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine_abi.h"

namespace sirtaki {

struct Signature {
  int32_t kind = 0;
  int32_t reduce_op = 0;
  int32_t dtype = 0;
  int32_t root_rank = 0;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  // One shape per tensor of the group. The first dimension of an allgather or alltoall is not part of the
  // signature: -1.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> values;  // of a request about process sets

  int64_t num_bytes() const;  // of all tensors, with unknown dimensions as 1
  // How many numbers a rank sends along, for a set of so many members.
  size_t num_payloads(size_t num_members) const;
};

// Fields without meaning for the kind are set to their defaults, so that equal requests have equal bytes.
std::string encode_signature(const sirtaki_request& request);
Signature decode_signature(std::string_view bytes);

// Two signatures with equal fusion classes may travel in one buffer; an empty class travels alone.
std::string fusion_class(const Signature& signature);

}  // namespace sirtaki

#endif  // SIRTAKI_SIGNATURE_H_
