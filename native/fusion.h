// The fusion plan: which of the tensors that are ready travel together.
//
// A pure function; the sequencer evaluates it and the log carries the result, so all ranks agree by
// construction. It does not change any result: reductions go by rank, never by position in a buffer.
#ifndef SIRTAKI_FUSION_H_
#define SIRTAKI_FUSION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sirtaki {

struct ReadyTensor {
  uint32_t group;  // only tensors of one group travel together: same set, same members that take part
  int64_t num_bytes;
  // See fusion_class() in signature.h; points into the sequencer's table. Empty: travels alone.
  const std::string* fusion_class;
};

// Splits 0 .. ready.size() into batches, in order of each batch's first tensor. A batch holds tensors of one
// group and class, at most `threshold` bytes of them unless a single tensor is larger.
std::vector<std::vector<size_t>> plan_fusion(const std::vector<ReadyTensor>& ready, int64_t threshold);

}  // namespace sirtaki

#endif  // SIRTAKI_FUSION_H_
