#include "allreduce.h"

#include <algorithm>
#include <optional>

#include "timeline.h"

namespace sirtaki {
namespace {

// Up to here reading all slots oneself is quicker than a second round of waiting. Two ranks, float32: equal
// at about 32 KiB with cores near each other, at 8 KiB far apart; with more ranks the reading grows.
constexpr size_t kSmallBytesTimesRanks = 32 * 1024;
// Between hosts one message per chunk is quicker than one per channel up to here.
constexpr size_t kOneChannelBytes = 16 * 1024;

}  // namespace

// Slices begin at cache lines, so that no two ranks write to the same one.
Allreduce::Slice Allreduce::cut(size_t num_elements, size_t element_bytes, size_t num_slices, size_t index) {
  const size_t per_line = kCacheLine / element_bytes;
  const size_t lines = (num_elements + per_line - 1) / per_line;
  const size_t lines_each = (lines + num_slices - 1) / num_slices;
  const size_t step = lines_each * per_line;
  return {std::min(num_elements, index * step), std::min(num_elements, (index + 1) * step)};
}

bool Allreduce::run(Tickets* tickets, const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
                    const std::vector<Piece>& pieces) {
  const size_t total = total_bytes(pieces);
  const size_t local = layout.local_ranks.size();
  const bool small = layout.one_host() && total <= slot_bytes_ && total * local <= kSmallBytesTimesRanks;
  size_t channels = local;
  for (const auto& host : layout.hosts) channels = std::min(channels, host.size());
  if (!layout.one_host() && total <= kOneChannelBytes) channels = 1;

  PieceCursor in(&pieces);
  PieceCursor out(&pieces);
  std::optional<Chunk> previous;
  for (size_t begin = 0; begin < total; begin += slot_bytes_) {
    const Chunk chunk{tickets->take(), std::min(slot_bytes_, total - begin), channels};
    enter_phase(Phase::kPack);
    char* slot = stages_->claim_slot(chunk.ticket, layout.local_ranks);
    if (slot == nullptr) return false;
    in.copy_inputs_to(slot, chunk.bytes);
    stages_->publish(Stage::kPacked, chunk.ticket);
    if (small) return reduce_everything(layout, kernels, scaling, chunk, &out);
    if (previous && !unpack(layout, kernels, *previous, &out)) return false;
    if (!reduce_slice(layout, kernels, scaling, chunk)) return false;
    previous = chunk;
  }
  return !previous || unpack(layout, kernels, *previous, &out);
}

bool Allreduce::reduce_everything(const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
                                  const Chunk& chunk, PieceCursor* out) {
  enter_phase(Phase::kReduce);
  if (!stages_->wait_all(layout.local_ranks, Stage::kPacked, chunk.ticket)) return false;
  std::vector<const void*> sources;
  for (uint32_t r : layout.local_ranks) sources.push_back(stages_->slot(r, chunk.ticket));
  partials_.resize(std::max(partials_.size(), chunk.bytes));
  kernels.reduce(partials_.data(), sources.data(), sources.size(), chunk.bytes / kernels.element_bytes,
                 scaling);
  stages_->publish(Stage::kDone, chunk.ticket);
  enter_phase(Phase::kUnpack);
  out->copy_to_outputs(partials_.data(), chunk.bytes);
  return true;
}

bool Allreduce::reduce_slice(const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
                             const Chunk& chunk) {
  enter_phase(Phase::kReduce);
  if (layout.my_index >= chunk.num_slices) return true;
  if (!stages_->wait_all(layout.local_ranks, Stage::kPacked, chunk.ticket)) return false;
  const size_t num_elements = chunk.bytes / kernels.element_bytes;
  const Slice slice = cut(num_elements, kernels.element_bytes, chunk.num_slices, layout.my_index);
  if (slice.size() > 0) {
    const size_t offset = slice.begin * kernels.element_bytes;
    std::vector<const void*> sources;
    for (uint32_t r : layout.local_ranks) sources.push_back(stages_->slot(r, chunk.ticket) + offset);
    if (layout.one_host()) {
      kernels.reduce(stages_->own_slot(chunk.ticket) + offset, sources.data(), sources.size(), slice.size(),
                     scaling);
    } else if (!reduce_across_hosts(layout, kernels, scaling, chunk, sources, slice)) {
      return false;
    }
  }
  stages_->publish(Stage::kReduced, chunk.ticket);
  return true;
}

bool Allreduce::reduce_across_hosts(const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
                                    const Chunk& chunk, const std::vector<const void*>& sources,
                                    Slice slice) {
  const size_t num_hosts = layout.hosts.size();
  const size_t me = layout.my_host;
  const auto part = [&](size_t host) { return cut(slice.size(), kernels.element_bytes, num_hosts, host); };
  const auto peer = [&](size_t host) { return layout.hosts[host][layout.my_index]; };
  const size_t my_bytes = part(me).size() * kernels.partial_bytes;

  // Scratch: the partial sums of my slice, then the other hosts' partial sums of my part.
  const size_t inbox = slice.size() * kernels.partial_bytes;
  partials_.resize(std::max(partials_.size(), inbox + num_hosts * my_bytes));
  char* scratch = partials_.data();
  kernels.reduce_partial(scratch, sources.data(), sources.size(), slice.size(), scaling);
  std::vector<const void*> partials(num_hosts);
  for (size_t h = 0; h < num_hosts; ++h) {
    if (h == me) {
      partials[h] = scratch + part(me).begin * kernels.partial_bytes;
    } else {
      partials[h] = scratch + inbox + h * my_bytes;
      mpi_->receive(peer(h), scratch + inbox + h * my_bytes, my_bytes);
      mpi_->send(peer(h), scratch + part(h).begin * kernels.partial_bytes,
                 part(h).size() * kernels.partial_bytes);
    }
  }
  if (!mpi_->finish()) return false;

  char* result = stages_->own_slot(chunk.ticket) + slice.begin * kernels.element_bytes;
  char* my_result = result + part(me).begin * kernels.element_bytes;
  kernels.finish_partials(my_result, partials.data(), num_hosts, part(me).size(), scaling);
  for (size_t h = 0; h < num_hosts; ++h) {
    if (h == me) continue;
    mpi_->receive(peer(h), result + part(h).begin * kernels.element_bytes,
                  part(h).size() * kernels.element_bytes);
    mpi_->send(peer(h), my_result, part(me).size() * kernels.element_bytes);
  }
  return mpi_->finish();
}

bool Allreduce::unpack(const SetLayout& layout, const Kernels& kernels, const Chunk& chunk,
                       PieceCursor* out) {
  enter_phase(Phase::kUnpack);
  const size_t num_elements = chunk.bytes / kernels.element_bytes;
  for (size_t i = 0; i < chunk.num_slices; ++i) {
    const uint32_t owner = layout.local_ranks[i];
    if (i != layout.my_index && !stages_->wait(owner, Stage::kReduced, chunk.ticket)) return false;
    const Slice slice = cut(num_elements, kernels.element_bytes, chunk.num_slices, i);
    out->copy_to_outputs(stages_->slot(owner, chunk.ticket) + slice.begin * kernels.element_bytes,
                         slice.size() * kernels.element_bytes);
  }
  stages_->publish(Stage::kDone, chunk.ticket);
  return true;
}

}  // namespace sirtaki
