#include "stage.h"

#include <algorithm>

namespace sirtaki {
namespace {

// A sleeper is woken by the publisher; the limit bounds what a wake-up lost to a dying process can cost, and
// how late a long wait is noticed.
constexpr int64_t kLongestSleepNs = 200 * 1000 * 1000;
// Reading the clock costs as much as a few looks at the word.
constexpr int kLooksPerClockRead = 64;

// The half of a stage word that changes with every chunk: what a futex can sleep on.
std::atomic<uint32_t>* futex_word(std::atomic<uint64_t>* stage) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<std::atomic<uint32_t>*>(stage);
}

}  // namespace

StageBoard::StageBoard(Segment* segment, int64_t spin_ns, const LongWait* long_wait)
    : segment_(segment), spin_ns_(spin_ns), long_wait_(long_wait), last_use_(segment->shape().num_slots) {}

uint32_t StageBoard::slot_index(uint64_t ticket) const {
  const uint64_t sequence = ticket >> kChunkBits;
  const uint64_t chunk = ticket & ((uint64_t{1} << kChunkBits) - 1);
  return static_cast<uint32_t>((sequence + chunk) % last_use_.size());
}

char* StageBoard::own_slot(uint64_t ticket) const {
  return segment_->slot(segment_->local_rank(), slot_index(ticket));
}

const char* StageBoard::slot(uint32_t local_rank, uint64_t ticket) const {
  return segment_->slot(local_rank, slot_index(ticket));
}

char* StageBoard::claim_slot(uint64_t ticket, const std::vector<uint32_t>& readers) {
  SlotUse& use = last_use_[slot_index(ticket)];
  if (use.ticket != 0 && !wait_all(use.readers, Stage::kDone, use.ticket)) return nullptr;
  use.ticket = ticket;
  use.readers = readers;
  return own_slot(ticket);
}

void StageBoard::publish(Stage stage, uint64_t ticket) {
  RankBlock& own = segment_->own_block();
  auto& word = own.stages[static_cast<size_t>(stage)];
  word.store(ticket, std::memory_order_seq_cst);
  if (own.stage_sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(futex_word(&word), Scope::kShared);
  }
}

bool StageBoard::wait(uint32_t local_rank, Stage stage, uint64_t ticket) {
  RankBlock& block = segment_->block(local_rank);
  auto& word = block.stages[static_cast<size_t>(stage)];
  if (word.load(std::memory_order_acquire) >= ticket) return true;
  const WaitClock clock(metrics_, metrics_ == nullptr ? kNobody : ranks_[local_rank]);
  const int64_t spin_end = spin_ns_ > 0 ? now_ns() + spin_ns_ : 0;
  while (spin_end != 0) {
    for (int i = 0; i < kLooksPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) >= ticket) return true;
      cpu_relax();
    }
    if (now_ns() >= spin_end) break;
  }
  block.stage_sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool reached = false;
  while (!reached && !segment_->failed()) {
    const uint64_t seen = word.load(std::memory_order_seq_cst);
    reached = seen >= ticket;
    if (reached) break;
    const Wake wake =
        futex_wait(futex_word(&word), static_cast<uint32_t>(seen), kLongestSleepNs, Scope::kShared);
    if (wake != Wake::kWoken && long_wait_ != nullptr) long_wait_->happens();
  }
  block.stage_sleepers.fetch_sub(1, std::memory_order_relaxed);
  return reached;
}

bool StageBoard::wait_all(const std::vector<uint32_t>& local_ranks, Stage stage, uint64_t ticket) {
  return std::all_of(local_ranks.begin(), local_ranks.end(),
                     [&](uint32_t r) { return r == segment_->local_rank() || wait(r, stage, ticket); });
}

}  // namespace sirtaki
