#include "reduce_scatter.h"

#include <algorithm>

#include "timeline.h"

namespace sirtaki {

bool ReduceScatter::run(Tickets* tickets, const SetLayout& layout, const Kernels& kernels,
                        const Scaling& scaling, const std::vector<std::vector<Piece>>& shares) {
  const size_t n = layout.size();
  const size_t me = layout.my_member();
  const size_t lane_bytes = slot_bytes_ / n / kCacheLine * kCacheLine;
  std::vector<size_t> bytes;
  std::vector<PieceCursor> inputs;
  for (const auto& share : shares) {
    bytes.push_back(total_bytes(share));
    inputs.emplace_back(&share);
  }
  PieceCursor output(&shares[me]);
  const size_t longest = *std::max_element(bytes.begin(), bytes.end());
  result_.resize(std::max(result_.size(), std::min(longest, lane_bytes)));
  std::vector<size_t> chunks(n);
  for (size_t begin = 0; begin < longest; begin += lane_bytes) {
    const uint64_t ticket = tickets->take();
    enter_phase(Phase::kPack);
    char* slot = stages_->claim_slot(ticket, layout.local_ranks);
    if (slot == nullptr) return false;
    for (size_t m = 0; m < n; ++m) {
      chunks[m] = begin < bytes[m] ? std::min(lane_bytes, bytes[m] - begin) : 0;
      inputs[m].copy_inputs_to(slot + m * lane_bytes, chunks[m]);
    }
    stages_->publish(Stage::kPacked, ticket);
    enter_phase(Phase::kReduce);
    if (!stages_->wait_all(layout.local_ranks, Stage::kPacked, ticket)) return false;
    if (layout.one_host()) {
      std::vector<const void*> sources;
      for (uint32_t r : layout.local_ranks) sources.push_back(stages_->slot(r, ticket) + me * lane_bytes);
      kernels.reduce(result_.data(), sources.data(), sources.size(), chunks[me] / kernels.element_bytes,
                     scaling);
    } else if (!reduce_across_hosts(layout, kernels, scaling, ticket, lane_bytes, chunks, result_.data())) {
      return false;
    }
    stages_->publish(Stage::kDone, ticket);
    enter_phase(Phase::kUnpack);
    output.copy_to_outputs(result_.data(), chunks[me]);
  }
  return true;
}

bool ReduceScatter::reduce_across_hosts(const SetLayout& layout, const Kernels& kernels,
                                        const Scaling& scaling, uint64_t ticket, size_t lane_bytes,
                                        const std::vector<size_t>& chunks, char* result) {
  const size_t n = layout.size();
  const size_t me = layout.my_member();
  const size_t num_hosts = layout.hosts.size();
  const size_t most = lane_bytes / kernels.element_bytes * kernels.partial_bytes;
  const auto elements = [&](size_t m) { return chunks[m] / kernels.element_bytes; };
  // Scratch: for each member the partial sums of this host, as far as they are mine to make; then, for each
  // host, those of my own share.
  partials_.resize(std::max(partials_.size(), (n + num_hosts) * most));
  char* inbox = partials_.data() + n * most;

  std::vector<const void*> sources(layout.local_ranks.size());
  const auto reduce_lane = [&](size_t m) {
    for (size_t i = 0; i < sources.size(); ++i) {
      sources[i] = stages_->slot(layout.local_ranks[i], ticket) + m * lane_bytes;
    }
    kernels.reduce_partial(partials_.data() + m * most, sources.data(), sources.size(), elements(m), scaling);
  };
  for (size_t h = 0; h < num_hosts; ++h) {
    const std::vector<int32_t>& host = layout.hosts[h];
    if (h == layout.my_host) continue;
    const int32_t deputy_of_mine = host[layout.my_index % host.size()];
    mpi_->receive(deputy_of_mine, inbox + h * most, elements(me) * kernels.partial_bytes);
    for (size_t i = 0; i < host.size(); ++i) {
      if (i % layout.local_ranks.size() != layout.my_index) continue;
      const size_t m = layout.member_of(host[i]);
      if (elements(m) == 0) continue;
      reduce_lane(m);
      mpi_->send(host[i], partials_.data() + m * most, elements(m) * kernels.partial_bytes);
    }
  }
  reduce_lane(me);
  if (!mpi_->finish()) return false;
  std::vector<const void*> by_host(num_hosts);
  for (size_t h = 0; h < num_hosts; ++h) {
    by_host[h] = h == layout.my_host ? partials_.data() + me * most : inbox + h * most;
  }
  kernels.finish_partials(result, by_host.data(), num_hosts, elements(me), scaling);
  return true;
}

}  // namespace sirtaki
