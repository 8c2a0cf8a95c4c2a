// Recording and writing; what an event looks like in the file is in timeline_format.cc.
#include "timeline.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "log.h"

namespace sirtaki {
namespace {

// 16384 events of about 130 bytes. At one event per microsecond the writer has 16 ms to come and fetch them.
constexpr size_t kCapacity = size_t{1} << 14;
// Events gather for this long before they are written together: so much a killed rank loses.
constexpr int64_t kGatherNs = 5 * 1000 * 1000;

thread_local PhaseTimes* active_phases = nullptr;

}  // namespace

std::atomic<bool> Timeline::on_{false};

TimelineRing::TimelineRing(size_t capacity) : cells_(new Cell[capacity]), mask_(capacity - 1) {
  for (size_t i = 0; i < capacity; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
}

// A cell is free for position p when its turn is p, and holds the event of p when its turn is p + 1.
bool TimelineRing::push(const TimelineEvent& event) {
  uint64_t position = tail_.load(std::memory_order_relaxed);
  for (;;) {
    Cell& cell = cells_[position & mask_];
    const uint64_t turn = cell.turn.load(std::memory_order_acquire);
    if (turn == position) {
      if (!tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
      cell.event = event;
      cell.turn.store(position + 1, std::memory_order_release);
      return true;
    }
    if (turn < position) return false;
    position = tail_.load(std::memory_order_relaxed);
  }
}

bool TimelineRing::pop(TimelineEvent* event) {
  Cell& cell = cells_[head_ & mask_];
  if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
  *event = cell.event;
  cell.turn.store(head_ + mask_ + 1, std::memory_order_release);
  ++head_;
  return true;
}

Timeline& Timeline::instance() {
  static auto* timeline = new Timeline();  // never destroyed: threads record until the very end
  return *timeline;
}

bool Timeline::start(FileDescriptor fd, int32_t rank, std::string header, bool marks_batches) {
  const std::lock_guard<std::mutex> control(control_mutex_);
  if (writer_.joinable()) return false;
  if (!ring_) ring_ = std::make_unique<TimelineRing>(kCapacity);
  {
    const std::lock_guard<std::mutex> lock(lanes_mutex_);
    lane_of_.clear();
    lanes_.assign(1, "batches");
    is_unnamed_.assign(1, false);
    free_unnamed_.clear();
    num_unnamed_ = 0;
    session_.fetch_add(1);
  }
  fd_ = std::move(fd);
  rank_ = rank;
  written_ = 0;
  num_dropped_.store(0);
  dropped_told_ = 0;
  is_broken_ = false;
  places_.clear();
  is_open_.clear();
  marks_batches_.store(marks_batches);
  stop_.store(0);
  TimelineText lines;
  begin(&lines);
  lines.reserve(header.size());
  lines.put_text(header);
  if (ftruncate(fd_.get(), 0) != 0 || !append(&lines)) {
    fd_.close();
    return false;
  }
  writer_ = start_thread("sirtaki-timelin", [this] { run(); });
  on_.store(true);
  return true;
}

bool Timeline::stop() {
  const std::lock_guard<std::mutex> control(control_mutex_);
  if (!writer_.joinable()) return false;
  on_.store(false);
  stop_.store(1);
  futex_wake_all(&stop_, Scope::kProcess);
  sleeps_.store(0);
  futex_wake_all(&sleeps_, Scope::kProcess);
  writer_.join();
  fd_.close();
  return true;
}

void Timeline::abandon_after_fork() {
  if (!on_.exchange(false)) return;
  writer_.detach();
  fd_.close();
}

TimelineTag Timeline::open(const std::string& name, uint32_t process_set) {
  TimelineTag tag;
  tag.submitted_ns = now_ns();
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  tag.session = session_.load(std::memory_order_relaxed);
  if (name.empty()) {
    if (free_unnamed_.empty()) {
      free_unnamed_.push_back(static_cast<uint32_t>(lanes_.size()));
      ++num_unnamed_;
      lanes_.push_back(num_unnamed_ == 1 ? "(unnamed)" : "(unnamed " + std::to_string(num_unnamed_) + ")");
      is_unnamed_.push_back(true);
    }
    tag.lane = free_unnamed_.back();
    free_unnamed_.pop_back();
    return tag;
  }
  const std::string& lane =
      process_set == 0 ? name : name + " (process set " + std::to_string(process_set) + ")";
  const auto [it, is_new] = lane_of_.try_emplace(lane, static_cast<uint32_t>(lanes_.size()));
  if (is_new) {
    lanes_.push_back(lane);
    is_unnamed_.push_back(false);
  }
  tag.lane = it->second;
  return tag;
}

void Timeline::release_lane(const TimelineEvent& event) {
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  // Lanes are numbered anew in every session; an event may come late, from one that is over.
  if (event.session != session_.load(std::memory_order_relaxed)) return;
  if (is_unnamed_[event.lane]) free_unnamed_.push_back(event.lane);
}

void Timeline::record(const TimelineEvent& event) {
  if (!ring_->push(event)) {
    num_dropped_.fetch_add(1, std::memory_order_relaxed);
    // What ends a request must not keep its lane for ever.
    if (event.kind == TimelineEvent::Kind::kDone || event.kind == TimelineEvent::Kind::kFailed)
      release_lane(event);
    return;
  }
  // Pairs with the writer, which announces its sleep and then looks for events once more.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_relaxed) != 0 && sleeps_.exchange(0) != 0) {
    futex_wake_all(&sleeps_, Scope::kProcess);
  }
}

void Timeline::run() {
  TimelineText lines;
  begin(&lines);
  for (;;) {
    const bool last = stop_.load() != 0;
    const size_t num_events = drain(&lines);
    write_out(&lines);
    if (last) return;
    if (num_events == 0) {
      sleeps_.store(1);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (drain(&lines) == 0 && stop_.load() == 0) futex_wait(&sleeps_, 1, -1, Scope::kProcess);
      write_out(&lines);
      sleeps_.store(0);
    }
    if (stop_.load() == 0) futex_wait(&stop_, 0, kGatherNs, Scope::kProcess);
  }
}

size_t Timeline::drain(TimelineText* lines) {
  size_t n = 0;
  TimelineEvent event;
  while (n < kCapacity && ring_->pop(&event)) {
    ++n;
    // An event that was late for its session's end belongs to no file.
    if (event.session == session_.load(std::memory_order_relaxed)) format(event, lines);
  }
  const uint64_t dropped = num_dropped_.load(std::memory_order_relaxed);
  if (dropped > dropped_told_) {
    format_lost(dropped - dropped_told_, lines);
    log_message(LogLevel::kWarning, "timeline of rank " + std::to_string(rank_) + ": " +
                                        std::to_string(dropped - dropped_told_) +
                                        " events lost, because they came faster than they could be written");
    dropped_told_ = dropped;
  }
  return n;
}

void Timeline::begin(TimelineText* lines) {
  lines->clear();
  lines->put("  ");  // for append
}

void Timeline::write_out(TimelineText* lines) {
  if (lines->view().size() > 2 && !is_broken_ && !append(lines)) {
    is_broken_ = true;
    on_.store(false);
    log_message(LogLevel::kError, "the timeline of rank " + std::to_string(rank_) +
                                      " ends here: its file cannot be written: " + std::strerror(errno));
  }
  begin(lines);
}

// The closing bracket is overwritten by the next lines, in one call: the file is whole after each.
bool Timeline::append(TimelineText* lines) {
  lines->replace_first(written_ == 0 ? "[\n" : ",\n");
  lines->remove_last(2);  // the last comma, and the end of its line
  const size_t kept = lines->view().size();
  lines->reserve(3);
  lines->put("\n]\n");
  const std::string_view text = lines->view();
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = pwrite(fd_.get(), text.data() + done, text.size() - done,
                             static_cast<off_t>(written_) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  written_ += static_cast<int64_t>(kept);
  return true;
}

PhaseTimes::PhaseTimes(bool active) : active_(active) {
  if (!active_) return;
  begin_ = since_ = now_ns();
  active_phases = this;
}

PhaseTimes::~PhaseTimes() {
  if (active_) active_phases = nullptr;
}

void PhaseTimes::enter(Phase phase) {
  const int64_t now = now_ns();
  if (phase_ >= 0) ns_[static_cast<size_t>(phase_)] += now - since_;
  since_ = now;
  phase_ = static_cast<int>(phase);
  if (phase == Phase::kPack) ++num_chunks_;
}

void PhaseTimes::finish() {
  if (!active_) return;
  const int64_t now = now_ns();
  if (phase_ >= 0) ns_[static_cast<size_t>(phase_)] += now - since_;
  since_ = now;
  phase_ = -1;
}

void enter_active_phase(Phase phase) {
  if (active_phases != nullptr) active_phases->enter(phase);
}

}  // namespace sirtaki
