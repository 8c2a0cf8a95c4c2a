#include "fusion.h"

#include <map>
#include <utility>

namespace sirtaki {

// So that the log entry of a batch fits into the log's ring many times over.
constexpr size_t kMostTensors = 4096;

std::vector<std::vector<size_t>> plan_fusion(const std::vector<ReadyTensor>& ready, int64_t threshold) {
  struct Open {
    size_t batch;
    int64_t bytes;
  };
  std::vector<std::vector<size_t>> batches;
  std::map<std::pair<uint32_t, std::string>, Open> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    const ReadyTensor& tensor = ready[i];
    if (tensor.fusion_class->empty() || ready.size() == 1) {
      batches.push_back({i});
      continue;
    }
    auto [it, is_new] = open.try_emplace({tensor.group, *tensor.fusion_class}, Open{0, 0});
    Open& batch = it->second;
    if (is_new || batch.bytes + tensor.num_bytes > threshold || batches[batch.batch].size() == kMostTensors) {
      batch = {batches.size(), 0};
      batches.emplace_back();
    }
    batches[batch.batch].push_back(i);
    batch.bytes += tensor.num_bytes;
  }
  return batches;
}

}  // namespace sirtaki
