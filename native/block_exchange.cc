#include "block_exchange.h"

#include <algorithm>
#include <cstring>

#include "timeline.h"

namespace sirtaki {
namespace {

// Where a block lies on one host: in which member's slot, in which lane of it.
struct Place {
  size_t holder;  // index of the member within its host
  size_t lane;
};

// The places of all blocks on all hosts, computed alike by every member: [host][member of the set].
std::vector<std::vector<Place>> place_blocks(const SetLayout& layout, const std::vector<Block>& blocks,
                                             size_t* lanes) {
  std::vector<std::vector<Place>> places(layout.hosts.size(), std::vector<Place>(blocks.size()));
  *lanes = 1;
  for (size_t h = 0; h < layout.hosts.size(); ++h) {
    const std::vector<int32_t>& host = layout.hosts[h];
    std::vector<size_t> used(host.size());
    for (size_t m = 0; m < blocks.size(); ++m) {
      const auto own = std::find(host.begin(), host.end(), layout.ranks[m]);
      if (own == host.end() || blocks[m].bytes == 0) continue;
      const auto holder = static_cast<size_t>(own - host.begin());
      places[h][m] = {holder, used[holder]++};
    }
    for (size_t m = 0; m < blocks.size(); ++m) {
      const bool foreign = std::find(host.begin(), host.end(), layout.ranks[m]) == host.end();
      if (!foreign || blocks[m].bytes == 0) continue;
      const auto holder = static_cast<size_t>(std::min_element(used.begin(), used.end()) - used.begin());
      places[h][m] = {holder, used[holder]++};
    }
    *lanes = std::max(*lanes, *std::max_element(used.begin(), used.end()));
  }
  return places;
}

}  // namespace

bool BlockExchange::run(Tickets* tickets, const SetLayout& layout, const std::vector<Block>& blocks) {
  size_t lanes = 1;
  const auto places = place_blocks(layout, blocks, &lanes);
  const std::vector<Place>& here = places[layout.my_host];
  const size_t lane_bytes = slot_bytes_ / lanes / kCacheLine * kCacheLine;

  // The host of each member, and this rank as a member.
  std::vector<size_t> host_of(blocks.size());
  size_t me = 0;
  size_t longest = 0;
  for (size_t m = 0; m < blocks.size(); ++m) {
    for (size_t h = 0; h < layout.hosts.size(); ++h) {
      const auto& host = layout.hosts[h];
      if (std::find(host.begin(), host.end(), layout.ranks[m]) != host.end()) host_of[m] = h;
    }
    if (layout.ranks[m] == layout.hosts[layout.my_host][layout.my_index]) me = m;
    longest = std::max(longest, blocks[m].bytes);
  }
  for (const Piece& piece : blocks[me].pieces) {
    const bool moves = blocks[me].wanted && piece.output != piece.input && piece.bytes > 0;
    if (moves) std::memcpy(piece.output, piece.input, piece.bytes);
  }
  if (layout.size() == 1) return true;

  std::vector<PieceCursor> cursors;
  for (const Block& block : blocks) cursors.emplace_back(&block.pieces);
  for (size_t begin = 0; begin < longest; begin += lane_bytes) {
    const uint64_t ticket = tickets->take();
    const auto chunk = [&](size_t m) {
      return begin < blocks[m].bytes ? std::min(lane_bytes, blocks[m].bytes - begin) : 0;
    };
    enter_phase(Phase::kPack);
    char* slot = stages_->claim_slot(ticket, layout.local_ranks);
    if (slot == nullptr) return false;
    if (chunk(me) > 0) {
      char* lane = slot + here[me].lane * lane_bytes;
      cursors[me].copy_inputs_to(lane, chunk(me));
      for (size_t h = 0; h < layout.hosts.size(); ++h) {
        if (h != layout.my_host) mpi_->send(layout.hosts[h][places[h][me].holder], lane, chunk(me));
      }
    }
    for (size_t m = 0; m < blocks.size() && !layout.one_host(); ++m) {
      if (host_of[m] == layout.my_host || here[m].holder != layout.my_index || chunk(m) == 0) continue;
      mpi_->receive(layout.ranks[m], slot + here[m].lane * lane_bytes, chunk(m));
    }
    if (!layout.one_host() && !mpi_->finish()) return false;
    stages_->publish(Stage::kPacked, ticket);
    enter_phase(Phase::kUnpack);

    for (size_t m = 0; m < blocks.size(); ++m) {
      if (m == me || chunk(m) == 0) continue;
      const uint32_t holder = layout.local_ranks[here[m].holder];
      if (here[m].holder != layout.my_index && !stages_->wait(holder, Stage::kPacked, ticket)) return false;
      if (!blocks[m].wanted) continue;
      cursors[m].copy_to_outputs(stages_->slot(holder, ticket) + here[m].lane * lane_bytes, chunk(m));
    }
    stages_->publish(Stage::kDone, ticket);
  }
  return true;
}

}  // namespace sirtaki
