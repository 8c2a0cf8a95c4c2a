// Who drives the engine, and a driver's steps: records to the sequencer, entries from the log. See engine.h.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace sirtaki {
namespace {

constexpr int kLooksPerClockRead = 32;
// A signal that arrives just before a thread sleeps leaves no trace in the kernel, so a caller that waits
// looks for signals this often. Only callers: the coordinator sleeps as long as there is nothing to do.
constexpr int64_t kSignalCheckNs = 200 * 1000 * 1000;
// How long a waiting caller sleeps at most.
int64_t sleep_limit(int64_t deadline_ns) {
  if (deadline_ns < 0) return kSignalCheckNs;
  return std::clamp<int64_t>(deadline_ns - now_ns(), 0, kSignalCheckNs);
}

}  // namespace

// ---- Who drives
// ---------------------------------------------------------------------------------------------

bool Engine::take_role() {
  uint32_t free = 0;
  if (!role_.compare_exchange_strong(free, 1)) return false;
  const uint32_t bell = segment_->own_block().bell_state.exchange(static_cast<uint32_t>(BellState::kAwake));
  if (bell == static_cast<uint32_t>(BellState::kCoordinatorSleeps)) coordinator_parked_.store(true);
  return true;
}

void Engine::release_role() {
  if (coordinator_parked_.exchange(false)) {
    // The coordinator still sleeps: let its bell sound again, and sound it if something came meanwhile.
    segment_->own_block().bell_state.store(static_cast<uint32_t>(BellState::kCoordinatorSleeps));
    role_.store(0);
    if (has_work() || stop_.load()) segment_->ring(segment_->local_rank());
  } else {
    role_.store(0);
  }
  wake_waiters();
}

void Engine::wake_waiters() {
  waiters_word_.fetch_add(1);
  if (num_waiters_.load() != 0) futex_wake_all(&waiters_word_, Scope::kProcess);
}

// It sleeps until its bell sounds or, while a caller drives, until the role is free.
void Engine::wake_coordinator() {
  auto& word = segment_->own_block().coordinator_word;
  word.fetch_add(1);
  futex_wake_all(&word, Scope::kShared);
  wake_waiters();
}

Outcome Engine::run_coordinator() {
  RankBlock& own = segment_->own_block();
  for (;;) {
    if (stop_.load()) return Outcome::kStopped;
    if (has_rare()) return Outcome::kRare;
    if (!take_role()) {
      num_waiters_.fetch_add(1);
      const uint32_t seen = waiters_word_.load();
      if (role_.load() != 0 && !stop_.load() && !has_rare()) {
        futex_wait(&waiters_word_, seen, -1, Scope::kProcess);
      }
      num_waiters_.fetch_sub(1);
      continue;
    }
    coordinator_parked_.store(false);
    long_wait_.set_action(nullptr);
    while (step()) {
      if (has_rare()) break;
    }
    const uint32_t seen = own.coordinator_word.load();
    own.bell_state.store(static_cast<uint32_t>(BellState::kCoordinatorSleeps));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool stays = has_work() || has_rare() || stop_.load();
    if (stays) own.bell_state.store(static_cast<uint32_t>(BellState::kAwake));
    role_.store(0);
    wake_waiters();
    if (!stays) futex_wait(&own.coordinator_word, seen, -1, Scope::kShared);
  }
}

void Engine::request_stop() {
  stop_.store(true);
  if (!segment_) return;
  wake_coordinator();
}

Outcome Engine::submit_and_wait(const sirtaki_request& request, const std::function<bool()>& condition,
                                const LongWaitAction* long_wait) {
  if (!segment_ || !take_role()) {
    submit(request);
    return wait(condition, -1, long_wait);
  }
  const RoleHolder holder(this);
  submit(request);
  return drive(condition, long_wait);
}

Outcome Engine::wait(const std::function<bool()>& condition, int64_t timeout_ns,
                     const LongWaitAction* long_wait) {
  if (!segment_) return condition() ? Outcome::kDone : Outcome::kTimedOut;
  const bool may_drive = timeout_ns < 0;
  const int64_t deadline_ns = may_drive ? -1 : now_ns() + timeout_ns;
  for (;;) {
    if (condition()) return Outcome::kDone;
    if (may_drive && take_role()) {
      const RoleHolder holder(this);
      return drive(condition, long_wait);
    }
    num_waiters_.fetch_add(1);
    const uint32_t seen = waiters_word_.load();
    Wake wake = Wake::kWoken;
    if (!condition() && (!may_drive || role_.load() != 0)) {
      wake = futex_wait(&waiters_word_, seen, sleep_limit(deadline_ns), Scope::kProcess);
    }
    num_waiters_.fetch_sub(1);
    if (condition()) return Outcome::kDone;
    if (deadline_ns >= 0 && now_ns() >= deadline_ns) return Outcome::kTimedOut;
    if (wake != Wake::kWoken) return Outcome::kInterrupted;
  }
}

Outcome Engine::drive(const std::function<bool()>& condition, const LongWaitAction* long_wait) {
  long_wait_.set_action(long_wait);
  RankBlock& own = segment_->own_block();
  int64_t spin_end = 0;
  for (;;) {
    if (condition()) return Outcome::kDone;
    if (step()) {
      spin_end = 0;
      continue;
    }
    if (spin_ns_ > 0) {
      if (spin_end == 0) spin_end = now_ns() + spin_ns_;
      bool found = false;
      for (int i = 0; i < kLooksPerClockRead && !found; ++i) {
        cpu_relax();
        found = has_work();
      }
      if (found || now_ns() < spin_end) continue;
    }
    const uint32_t seen = own.caller_word.load();
    own.bell_state.store(static_cast<uint32_t>(BellState::kCallerSleeps));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Wake wake = Wake::kWoken;
    if (!has_work() && !condition()) {
      wake = futex_wait(&own.caller_word, seen, kSignalCheckNs, Scope::kShared);
    }
    own.bell_state.store(static_cast<uint32_t>(BellState::kAwake));
    spin_end = 0;
    if (condition()) return Outcome::kDone;
    if (wake != Wake::kWoken) return Outcome::kInterrupted;
  }
}

// ---- Driving
// ------------------------------------------------------------------------------------------------

bool Engine::has_work() const {
  if (segment_->failed()) return !failure_handled_.load();
  if (segment_->has_log()) return true;
  if (has_up_backlog_.load(std::memory_order_acquire) && segment_->own_block().up_blocked.load() == 0)
    return true;
  if (!sequencer_) return false;
  for (uint32_t r = 0; r < segment_->shape().local_size; ++r) {
    if (segment_->has_up(r)) return true;
  }
  if (relay_->has_inbox()) return true;
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  return (sequencer_->has_entry() || !log_backlog_.empty()) && segment_->header().log_blocked.load() == 0;
}

bool Engine::step() {
  try {
    if (segment_->failed()) {
      if (failure_handled_.exchange(true)) return false;
      fail_all(segment_->failure_code(), segment_->failure_text());
      relay_->knock();
      return true;
    }
    bool progress = flush_backlog();
    if (sequencer_) progress |= sequence();
    Record type;
    if (segment_->read_log(&type, &payload_)) {
      auto& blocked = segment_->header().log_blocked;
      if (blocked.load(std::memory_order_seq_cst) != 0) {
        blocked.store(0, std::memory_order_seq_cst);
        knock_sequencer();
      }
      // An entry that follows from a failure, such as the error about a rank that left because of it, is in
      // the log after the failure was posted: the next step tells the failure instead.
      if (segment_->failed()) return true;
      read_entry(type, payload_);
      progress = true;
    }
    return progress;
  } catch (const std::exception& e) {
    report_broken(e.what());
    return true;
  }
}

bool Engine::sequence() {
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  bool progress = false;
  Record type;
  std::string payload;
  for (uint32_t local = 0; local < segment_->shape().local_size; ++local) {
    while (segment_->read_up(local, &type, &payload)) {
      if (!progress) sequencer_->set_time(now_ns());
      sequencer_->handle(world_.hosts[0][local], type, payload);
      progress = true;
    }
  }
  InboxRecord record;
  while (relay_->take_inbox(&record)) {
    if (!progress) sequencer_->set_time(now_ns());
    sequencer_->handle(record.rank, record.type, record.payload);
    progress = true;
  }
  sequencer_->plan();
  progress |= write_log();
  if (sequencer_->has_rare_event()) wake_coordinator();
  return progress;
}

bool Engine::write_log() {
  bool wrote = false;
  while (sequencer_->has_entry()) {
    LogEntry entry = sequencer_->take_entry();
    if (entry.type == Record::kLeft) {
      const auto rank = Reader(entry.payload).value<int32_t>();
      relay_->note_left(rank);
      if (topology_.host_of[rank] == 0) segment_->block(topology_.local_rank_of[rank]).left.store(1);
    }
    relay_->send_to_hosts(entry.type, entry.payload);
    log_backlog_.push_back(std::move(entry));
  }
  while (!log_backlog_.empty() &&
         segment_->write_log(log_backlog_.front().type, log_backlog_.front().payload)) {
    log_backlog_.pop_front();
    wrote = true;
  }
  if (wrote) segment_->ring_all();
  return wrote;
}

void Engine::read_entry(Record type, const std::string& payload) {
  Reader reader(payload);
  switch (type) {
    case Record::kAssignName:
    case Record::kAssignSignature: {
      const auto number = reader.value<uint32_t>();
      on_assign(type == Record::kAssignName, number, reader.rest());
      return;
    }
    case Record::kExecute:
      on_execute(payload);
      return;
    case Record::kError: {
      const auto header = reader.value<ErrorHeader>();
      on_error(header, reader.rest());
      return;
    }
    case Record::kForgetName: {
      const auto number = reader.value<uint32_t>();
      on_forget_name(number, reader.rest());
      return;
    }
    case Record::kForgetSignature: {
      const auto number = reader.value<uint32_t>();
      on_forget_signature(number, reader.rest());
      return;
    }
    case Record::kForgetMark: {
      const std::lock_guard<std::mutex> lock(mutex_);
      send_up(Record::kForgotten, {});
      knock_sequencer();
      return;
    }
    case Record::kJoined:
      on_joined(reader.value<int32_t>());
      return;
    case Record::kLeft:
      if (reader.value<int32_t>() == topology_.rank) {
        fail_all(SIRTAKI_RANK_LEFT,
                 "shutdown() ended this rank's part in the job while the request was in flight");
        own_left_.store(true);
      }
      num_left_.fetch_add(1);
      wake_waiters();
      return;
    default:
      throw std::runtime_error("the log has a record of an unknown type");
  }
}

void Engine::on_assign(bool is_name, uint32_t number, std::string_view bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Request*> waiting;
    if (is_name) {
      NameState& name = names_[std::string(bytes)];
      name.number = number;
      name.asked = false;
      if (name.waiting != nullptr) waiting.push_back(std::exchange(name.waiting, nullptr));
    } else {
      SignatureState& signature = signatures_[std::string(bytes)];
      signature.number = number;
      signature.asked = false;
      waiting.swap(signature.waiting);
    }
    for (Request* request : waiting) {
      const auto it = unassigned_.find(request);
      // Ended meanwhile with its process set, or listed twice since its name was forgotten.
      if (it == unassigned_.end()) continue;
      RequestPtr owner = std::move(it->second);
      unassigned_.erase(it);
      send_submit_or_wait(std::move(owner));
    }
    send_join_when_due();
  }
  knock_sequencer();
}

// What is in flight under a forgotten number stays so; see Sequencer::retire.
void Engine::on_forget_name(uint32_t number, std::string_view bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto name = names_.find(std::string(bytes));
  if (name == names_.end() || name->second.number != number) return;
  if (!name->second.in_flight) {
    names_.erase(name);
    return;
  }
  name->second.number = 0;
  // A request that has the number, and still waits for that of its signature, must ask again.
  for (auto& [pointer, request] : unassigned_) {
    if (request->key == number) request->key = 0;
  }
}

void Engine::on_forget_signature(uint32_t number, std::string_view bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto signature = signatures_.find(std::string(bytes));
  if (signature != signatures_.end() && signature->second.number == number) signatures_.erase(signature);
}

void Engine::on_joined(int32_t last_rank) {
  std::vector<RequestPtr> requests;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!joining_) return;
    requests.push_back(std::move(joining_));
    join_sent_ = false;
    // Nothing is in flight, and ranks that joined early have made fewer unnamed calls: all count anew.
    for (auto& [number, set] : sets_) set.unnamed_calls = 0;
  }
  requests[0]->set_result(requests[0]->context, last_rank);
  complete(&requests);
}

Engine::RequestPtr Engine::take_in_flight(Key key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (key == kJoinKey) {
    join_sent_ = false;
    return std::move(joining_);
  }
  const auto it = in_flight_.find(key);
  if (it == in_flight_.end()) return nullptr;
  RequestPtr request = std::move(it->second);
  in_flight_.erase(it);
  return request;
}

void Engine::on_error(const ErrorHeader& header, std::string_view text) {
  if (header.rank != kEveryRank && header.rank != topology_.rank) return;
  std::vector<RequestPtr> requests;
  requests.push_back(take_in_flight(header.key));
  if (!requests[0]) return;  // this rank is not in the set
  requests[0]->error = header.code;
  requests[0]->message = text;
  complete(&requests);
}

}  // namespace sirtaki
