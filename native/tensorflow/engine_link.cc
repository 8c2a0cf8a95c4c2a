// Holds the engine's address and the counters. Counters are relaxed: they order nothing.
#include "engine_link.h"

#include <atomic>

namespace sirtaki::tensorflow {
namespace {

std::atomic<const sirtaki_engine_api*> engine_api{nullptr};

std::atomic<int64_t> tensors_of_kind[SIRTAKI_JOIN + 1];
std::atomic<int64_t> gradients{0};
std::atomic<int64_t> requests{0};
std::atomic<int64_t> in_place_outputs{0};
std::atomic<int64_t> in_flight{0};
std::atomic<int64_t> most_in_flight{0};

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

const sirtaki_engine_api* engine() { return engine_api.load(std::memory_order_acquire); }

// The names that tf_bindings/gradient_reduction.py gives; the rows of sparse gradients come with their
// values.
bool names_gradients(const std::string& name) {
  constexpr char kIndices[] = ".indices";
  constexpr size_t kLength = sizeof(kIndices) - 1;
  const bool names_indices =
      name.size() >= kLength && name.compare(name.size() - kLength, kLength, kIndices) == 0;
  return !names_indices &&
         (name.rfind("DistributedOptimizer.", 0) == 0 || name.rfind("DistributedGradientTape", 0) == 0);
}

void count_submission(int32_t kind, int64_t tensors, int64_t in_place, bool carries_gradients) {
  tensors_of_kind[kind].fetch_add(tensors, kRelaxed);
  if (carries_gradients) gradients.fetch_add(tensors, kRelaxed);
  requests.fetch_add(1, kRelaxed);
  in_place_outputs.fetch_add(in_place, kRelaxed);
  const int64_t now = in_flight.fetch_add(1, kRelaxed) + 1;
  int64_t most = most_in_flight.load(kRelaxed);
  while (most < now && !most_in_flight.compare_exchange_weak(most, now, kRelaxed)) {
  }
}

void count_completion() { in_flight.fetch_sub(1, kRelaxed); }

}  // namespace sirtaki::tensorflow

extern "C" {

// Returns 0, or the ABI version that this library was built for if the engine's differs.
__attribute__((visibility("default"))) uint32_t sirtaki_ops_set_engine(const sirtaki_engine_api* api) {
  if (api->abi_version != SIRTAKI_ABI_VERSION) return SIRTAKI_ABI_VERSION;
  sirtaki::tensorflow::engine_api.store(api, std::memory_order_release);
  return 0;
}

__attribute__((visibility("default"))) void sirtaki_ops_read_counters(sirtaki_ops_counters* counters) {
  using namespace sirtaki::tensorflow;
  counters->allreduced = tensors_of_kind[SIRTAKI_ALLREDUCE].load(kRelaxed);
  counters->allgathered = tensors_of_kind[SIRTAKI_ALLGATHER].load(kRelaxed);
  counters->broadcast = tensors_of_kind[SIRTAKI_BROADCAST].load(kRelaxed);
  counters->alltoall = tensors_of_kind[SIRTAKI_ALLTOALL].load(kRelaxed);
  counters->reducescattered = tensors_of_kind[SIRTAKI_REDUCESCATTER].load(kRelaxed);
  counters->gradients = gradients.load(kRelaxed);
  counters->requests = requests.load(kRelaxed);
  counters->in_place = in_place_outputs.load(kRelaxed);
  counters->in_flight = in_flight.load(kRelaxed);
  counters->most_in_flight = most_in_flight.load(kRelaxed);
}

// Everything back to zero, except what is in flight.
__attribute__((visibility("default"))) void sirtaki_ops_reset_counters() {
  using namespace sirtaki::tensorflow;
  for (std::atomic<int64_t>& count : tensors_of_kind) count.store(0, kRelaxed);
  gradients.store(0, kRelaxed);
  requests.store(0, kRelaxed);
  in_place_outputs.store(0, kRelaxed);
  most_in_flight.store(in_flight.load(kRelaxed), kRelaxed);
}

}  // extern "C"
