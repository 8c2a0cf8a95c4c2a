#include "alltoall.h"

#include <algorithm>
#include <cstring>

#include "timeline.h"

namespace sirtaki {

bool Alltoall::run(Tickets* tickets, const SetLayout& layout, const std::vector<size_t>& bytes,
                   const std::vector<Part>& parts) {
  const size_t n = layout.size();
  const size_t me = layout.my_member();
  const auto given = [&](size_t from, size_t to) { return bytes[from * n + to]; };
  if (given(me, me) > 0 && parts[me].output != nullptr && parts[me].output != parts[me].input) {
    std::memcpy(parts[me].output, parts[me].input, given(me, me));
  }

  std::vector<size_t> here;  // members on this host, by their index in the host
  std::vector<size_t> elsewhere;
  for (int32_t rank : layout.hosts[layout.my_host]) here.push_back(layout.member_of(rank));
  for (size_t m = 0; m < n; ++m) {
    if (std::find(here.begin(), here.end(), m) == here.end()) elsewhere.push_back(m);
  }
  // Rounds count alike for all members of a host, and for the two that exchange messages.
  size_t longest_here = 0;
  for (size_t s : here) {
    for (size_t r : here) {
      if (s != r) longest_here = std::max(longest_here, given(s, r));
    }
  }
  size_t longest_elsewhere = 0;
  for (size_t m : elsewhere) longest_elsewhere = std::max({longest_elsewhere, given(me, m), given(m, me)});
  const size_t lane_bytes = slot_bytes_ / here.size() / kCacheLine * kCacheLine;
  const size_t message_bytes = slot_bytes_ / n / kCacheLine * kCacheLine;
  const auto rounds = [](size_t total, size_t step) { return (total + step - 1) / step; };
  const size_t rounds_here = rounds(longest_here, lane_bytes);
  const size_t rounds_elsewhere = rounds(longest_elsewhere, message_bytes);
  if (rounds_elsewhere > 0) {
    outbox_.resize(std::max(outbox_.size(), n * message_bytes));
    inbox_.resize(std::max(inbox_.size(), n * message_bytes));
  }
  const auto chunk = [](size_t total, size_t begin, size_t step) {
    return begin < total ? std::min(step, total - begin) : 0;
  };

  for (size_t round = 0; round < std::max(rounds_here, rounds_elsewhere); ++round) {
    // Messages are posted before anybody is waited for: so the members that are behind can always go on.
    const size_t sent = round * message_bytes;
    for (size_t m : elsewhere) {
      mpi_->receive(layout.ranks[m], inbox_.data() + m * message_bytes,
                    chunk(given(m, me), sent, message_bytes));
      const size_t out = chunk(given(me, m), sent, message_bytes);
      if (out == 0) continue;
      std::memcpy(outbox_.data() + m * message_bytes, parts[m].input + sent, out);
      mpi_->send(layout.ranks[m], outbox_.data() + m * message_bytes, out);
    }
    if (round < rounds_here) {
      const size_t begin = round * lane_bytes;
      const uint64_t ticket = tickets->take();
      enter_phase(Phase::kPack);
      char* slot = stages_->claim_slot(ticket, layout.local_ranks);
      if (slot == nullptr) return false;
      for (size_t i = 0; i < here.size(); ++i) {
        const size_t out = chunk(given(me, here[i]), begin, lane_bytes);
        if (here[i] != me && out > 0) std::memcpy(slot + i * lane_bytes, parts[here[i]].input + begin, out);
      }
      stages_->publish(Stage::kPacked, ticket);
      enter_phase(Phase::kUnpack);
      for (size_t i = 0; i < here.size(); ++i) {
        const size_t in = chunk(given(here[i], me), begin, lane_bytes);
        if (here[i] == me || in == 0) continue;
        const uint32_t sender = layout.local_ranks[i];
        if (!stages_->wait(sender, Stage::kPacked, ticket)) return false;
        if (parts[here[i]].output == nullptr) continue;
        std::memcpy(parts[here[i]].output + begin,
                    stages_->slot(sender, ticket) + layout.my_index * lane_bytes, in);
      }
      stages_->publish(Stage::kDone, ticket);
    }
    if (round >= rounds_elsewhere) continue;
    if (!mpi_->finish()) return false;
    for (size_t m : elsewhere) {
      const size_t in = chunk(given(m, me), sent, message_bytes);
      if (in > 0 && parts[m].output != nullptr) {
        std::memcpy(parts[m].output + sent, inbox_.data() + m * message_bytes, in);
      }
    }
  }
  return true;
}

}  // namespace sirtaki
