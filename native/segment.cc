#include "segment.h"

#include <algorithm>
#include <cstring>

namespace sirtaki {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kNoLongerReads = ~uint64_t{0};

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint64_t header_bytes() { return whole_pages(sizeof(SegmentHeader)); }
uint64_t block_bytes(const SegmentShape& s) {
  return whole_pages(sizeof(RankBlock)) + whole_pages(s.up_ring_bytes) + s.num_slots * s.slot_bytes;
}

void write_report(FailureReport* report, int32_t rank, int32_t code, std::string_view text) {
  report->rank = rank;
  report->code = code;
  size_t bytes = std::min(text.size(), report->text.size());
  // Not in the middle of a UTF-8 character.
  while (bytes < text.size() && bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80)
    --bytes;
  report->text_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(report->text.data(), text.data(), bytes);
}

}  // namespace

uint64_t SegmentShape::total_bytes() const {
  return header_bytes() + whole_pages(log_ring_bytes) + local_size * block_bytes(*this);
}

Segment::Segment(int fd, const SegmentShape& shape, uint32_t local_rank)
    : shape_(shape), local_rank_(local_rank), mapping_(fd, shape.total_bytes()) {}

RankBlock& Segment::block(uint32_t local_rank) const {
  return *reinterpret_cast<RankBlock*>(mapping_.data() + header_bytes() + whole_pages(shape_.log_ring_bytes) +
                                       local_rank * block_bytes(shape_));
}

char* Segment::slot(uint32_t local_rank, uint32_t slot) const {
  return reinterpret_cast<char*>(&block(local_rank)) + whole_pages(sizeof(RankBlock)) +
         whole_pages(shape_.up_ring_bytes) + slot * shape_.slot_bytes;
}

RingBytes Segment::up_ring(uint32_t local_rank) const {
  return {reinterpret_cast<char*>(&block(local_rank)) + whole_pages(sizeof(RankBlock)), shape_.up_ring_bytes};
}

RingBytes Segment::log_ring() const { return {mapping_.data() + header_bytes(), shape_.log_ring_bytes}; }

bool Segment::write_up(Record type, std::string_view payload) {
  RankBlock& own = own_block();
  const uint64_t written = own.up_written.load(std::memory_order_relaxed);
  const uint64_t end = written + RingBytes::record_bytes(payload.size());
  if (end - own.up_read.load(std::memory_order_acquire) > shape_.up_ring_bytes) {
    // Say so first and look again: the reader frees room before it looks at the flag.
    own.up_blocked.store(1, std::memory_order_seq_cst);
    if (end - own.up_read.load(std::memory_order_seq_cst) > shape_.up_ring_bytes) return false;
  }
  up_ring(local_rank_).put(written, type, payload);
  own.up_written.store(end, std::memory_order_release);
  return true;
}

bool Segment::has_up(uint32_t local_rank) const {
  const RankBlock& b = block(local_rank);
  return b.up_written.load(std::memory_order_acquire) != b.up_read.load(std::memory_order_relaxed);
}

bool Segment::read_up(uint32_t local_rank, Record* type, std::string* payload) {
  if (!has_up(local_rank)) return false;
  RankBlock& b = block(local_rank);
  const uint64_t next = up_ring(local_rank).get(b.up_read.load(std::memory_order_relaxed), type, payload);
  b.up_read.store(next, std::memory_order_seq_cst);
  if (b.up_blocked.load(std::memory_order_seq_cst) != 0) {
    b.up_blocked.store(0, std::memory_order_relaxed);
    ring(local_rank);
  }
  return true;
}

bool Segment::write_log(Record type, std::string_view payload) {
  SegmentHeader& h = header();
  const uint64_t written = h.log_written.load(std::memory_order_relaxed);
  const uint64_t end = written + RingBytes::record_bytes(payload.size());
  const auto has_room = [&] {
    uint64_t slowest = written;
    for (uint32_t r = 0; r < shape_.local_size; ++r) {
      slowest = std::min(slowest, block(r).log_read.load(std::memory_order_seq_cst));
    }
    return end - slowest <= shape_.log_ring_bytes;
  };
  if (!has_room()) {
    h.log_blocked.store(1, std::memory_order_seq_cst);
    if (!has_room()) return false;
  }
  log_ring().put(written, type, payload);
  h.log_written.store(end, std::memory_order_seq_cst);
  return true;
}

bool Segment::has_log() const {
  const uint64_t read = own_block().log_read.load(std::memory_order_relaxed);
  return read != kNoLongerReads && header().log_written.load(std::memory_order_acquire) != read;
}

void Segment::stop_reading_log() { own_block().log_read.store(kNoLongerReads, std::memory_order_seq_cst); }

bool Segment::read_log(Record* type, std::string* payload) {
  if (!has_log()) return false;
  RankBlock& own = own_block();
  const uint64_t next = log_ring().get(own.log_read.load(std::memory_order_relaxed), type, payload);
  own.log_read.store(next, std::memory_order_seq_cst);
  return true;
}

void Segment::ring(uint32_t local_rank) {
  RankBlock& b = block(local_rank);
  // Pairs with the sleeper, which announces its sleep and then looks for work once more.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto state = b.bell_state.load(std::memory_order_relaxed);
  if (state == static_cast<uint32_t>(BellState::kAwake)) return;
  if (!b.bell_state.compare_exchange_strong(state, static_cast<uint32_t>(BellState::kAwake))) return;
  auto& word =
      state == static_cast<uint32_t>(BellState::kCoordinatorSleeps) ? b.coordinator_word : b.caller_word;
  word.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&word, Scope::kShared);
}

void Segment::ring_all() {
  for (uint32_t r = 0; r < shape_.local_size; ++r) ring(r);
}

bool Segment::post_failure(int32_t rank, std::string_view text, int32_t code) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(report_mutex_);
    if (!failed()) {
      write_report(&own_block().failure, rank, code, text);
      uint32_t nobody = 0;
      first = header().failed_by.compare_exchange_strong(nobody, local_rank_ + 1);
    }
  }
  // Also if another was first: it may have been killed before it woke anybody.
  wake_all();
  return first;
}

void Segment::wake_all() {
  for (uint32_t r = 0; r < shape_.local_size; ++r) {
    // Not ring(): a rank that was killed between silencing a bell and waking the sleeper has left it silent.
    for (auto* word : {&block(r).coordinator_word, &block(r).caller_word}) {
      word->fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(word, Scope::kShared);
    }
    for (auto& stage : block(r).stages) {
      futex_wake_all(reinterpret_cast<std::atomic<uint32_t>*>(&stage), Scope::kShared);
    }
  }
}

bool Segment::failed() const { return header().failed_by.load(std::memory_order_acquire) != 0; }

const FailureReport& Segment::failure() const {
  static const FailureReport none{};
  const uint32_t by = header().failed_by.load(std::memory_order_acquire);
  return by == 0 ? none : block(by - 1).failure;
}

int32_t Segment::failed_rank() const { return failure().rank; }

int32_t Segment::failure_code() const { return failure().code; }

std::string Segment::failure_text() const {
  const FailureReport& report = failure();
  return {report.text.data(), report.text_bytes};
}

}  // namespace sirtaki
