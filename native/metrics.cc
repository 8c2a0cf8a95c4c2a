#include "metrics.h"

#include <algorithm>

namespace sirtaki {

void Metrics::count_batch(int32_t kind, uint64_t calls, uint64_t tensors, uint64_t bytes) {
  Kind& of_kind = kinds[std::min(static_cast<size_t>(kind), kKinds - 1)];
  add(&of_kind.calls, calls);
  add(&of_kind.tensors, tensors);
  add(&of_kind.bytes, bytes);
  size_t batch_class = 0;
  while (batch_class + 1 < kBatchClasses && uint64_t{1} << batch_class < tensors) ++batch_class;
  add(&batches[batch_class], 1);
}

void Metrics::count_last(int32_t rank, int64_t waited_ns) {
  if (rank < 0 || static_cast<size_t>(rank) >= times_last.size()) return;
  add(&times_last[static_cast<size_t>(rank)], 1);
  add(&waited_for_ns[static_cast<size_t>(rank)], static_cast<uint64_t>(waited_ns));
}

void Metrics::count_data_wait(int32_t rank, int64_t ns) {
  add(&data_wait_ns[static_cast<size_t>(rank)], static_cast<uint64_t>(ns));
}

uint64_t Metrics::total_data_wait_ns() const {
  uint64_t total = 0;
  for (const Count& of_rank : data_wait_ns) total += of_rank.load(std::memory_order_relaxed);
  return total;
}

}  // namespace sirtaki
