#include "engine.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "dtypes.h"
#include "kernels.h"
#include "signature.h"

namespace sirtaki {
namespace {

constexpr int kLooksPerClockRead = 32;
// A signal that arrives just before a thread sleeps leaves no trace in the kernel, so a caller that waits
// looks for signals this often. Only callers: the coordinator sleeps as long as there is nothing to do.
constexpr int64_t kSignalCheckNs = 200 * 1000 * 1000;
// A record must fit into the rings with room to spare; a signature this long is a group of thousands of
// tensors.
constexpr size_t kLongestRecord = 256 * 1024;

// How long a waiting caller sleeps at most.
int64_t sleep_limit(int64_t deadline_ns) {
  if (deadline_ns < 0) return kSignalCheckNs;
  return std::clamp<int64_t>(deadline_ns - now_ns(), 0, kSignalCheckNs);
}

}  // namespace

Engine::Engine(EngineOptions options) : topology_(std::move(options.topology)), spin_ns_(options.spin_ns) {
  std::vector<int32_t> everybody(static_cast<size_t>(topology_.size()));
  for (size_t r = 0; r < everybody.size(); ++r) everybody[r] = static_cast<int32_t>(r);
  world_ = make_layout(topology_, everybody);
  if (topology_.size() == 1) return;

  segment_ = std::make_unique<Segment>(options.segment.get(), options.shape,
                                       static_cast<uint32_t>(topology_.local_rank()));
  stages_ = std::make_unique<StageBoard>(segment_.get(), spin_ns_);
  if (options.has_mpi) mpi_ = std::make_unique<MpiExchange>(options.mpi, segment_.get(), spin_ns_);
  const size_t slot_bytes = options.shape.slot_bytes;
  allreduce_ = std::make_unique<Allreduce>(slot_bytes, stages_.get(), mpi_.get());
  blocks_ = std::make_unique<BlockExchange>(slot_bytes, stages_.get(), mpi_.get());
  if (topology_.rank == 0) {
    sequencer_ = std::make_unique<Sequencer>(topology_.size(), options.fusion_threshold);
  }
  relay_ = std::make_unique<Relay>(topology_, segment_.get(), std::move(options.links),
                                   std::move(options.doorbell), std::move(options.labels));
}

Engine::~Engine() {
  close();
  if (failed() && mpi_) {
    // MPI may still write into the buffers of transfers that were given up; the process is about to end.
    mpi_.release();
    allreduce_.release();
    blocks_.release();
    segment_.release();
  }
}

// ---- Submission
// ---------------------------------------------------------------------------------------------

Engine::RequestPtr Engine::copy_request(const sirtaki_request& r) {
  auto request = std::make_unique<Request>();
  request->kind = r.kind;
  request->reduce_op = r.reduce_op;
  request->dtype = r.dtype;
  request->root_rank = r.root_rank;
  request->process_set = static_cast<uint32_t>(r.process_set);
  request->prescale_factor = r.prescale_factor;
  request->postscale_factor = r.postscale_factor;
  if (r.name != nullptr) request->name = r.name;
  request->context = r.context;
  request->allocate_output = r.allocate_output;
  request->done = r.done;
  request->tensors.reserve(static_cast<size_t>(r.num_tensors));
  for (int32_t t = 0; t < r.num_tensors; ++t) {
    const sirtaki_tensor& tensor = r.tensors[t];
    size_t bytes = dtype_size(r.dtype);
    for (int32_t d = 0; d < tensor.num_dims; ++d) bytes *= static_cast<size_t>(tensor.dims[d]);
    request->tensors.push_back({static_cast<const char*>(tensor.input), static_cast<char*>(tensor.output),
                                std::vector<int64_t>(tensor.dims, tensor.dims + tensor.num_dims), bytes});
  }
  request->signature = encode_signature(r);
  return request;
}

void Engine::finish(RequestPtr request) {
  const bool ok = request->error == SIRTAKI_OK;
  request->done(request->context, request->error, ok ? nullptr : request->message.c_str());
}

void Engine::submit(const sirtaki_request& r) {
  RequestPtr request = copy_request(r);
  const auto refuse = [&](const std::string& text) {
    request->error = SIRTAKI_INVALID_ARGUMENT;
    request->message = (request->name.empty() ? "this call" : "'" + request->name + "'") + text;
    finish(std::move(request));
  };
  if (r.process_set != 0)
    return refuse(" names process set " + std::to_string(r.process_set) + ", which does not exist");
  if (r.kind != SIRTAKI_BARRIER && dtype_size(r.dtype) == 0) return refuse(" has an unknown type");
  if (r.kind == SIRTAKI_ALLREDUCE && find_kernels(r.dtype) == nullptr)
    return refuse(" has a type without reduction");
  if (r.kind == SIRTAKI_ALLGATHER && (r.num_tensors != 1 || r.tensors[0].num_dims == 0)) {
    return refuse(
        " is an allgather of a scalar: tensors are joined along their first dimension, so give it one");
  }
  if (r.kind == SIRTAKI_BROADCAST && (r.root_rank < 0 || r.root_rank >= topology_.size())) {
    return refuse(" has root rank " + std::to_string(r.root_rank) + ", but the ranks are 0 to " +
                  std::to_string(topology_.size() - 1));
  }
  if (request->signature.size() > kLongestRecord || request->name.size() > kLongestRecord) {
    return refuse(" has too many tensors in one group, or too long a name: split the group");
  }

  std::vector<RequestPtr> ended;
  if (!segment_) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      request->error = closed_error_;
      request->message = closed_text_;
    }
    ended.push_back(std::move(request));
    if (ended[0]->error == SIRTAKI_OK) {
      const bool gathers = r.kind == SIRTAKI_ALLGATHER;
      const std::vector<int64_t> rows(gathers ? 1 : 0, gathers ? r.tensors[0].dims[0] : 0);
      execute(0, 0, rows, &ended);
    } else {
      finish(std::move(ended[0]));
    }
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    file(std::move(request), &ended);
  }
  for (RequestPtr& refused : ended) finish(std::move(refused));
  knock_sequencer();
}

void Engine::file(RequestPtr request, std::vector<RequestPtr>* refused) {
  if (closed_error_ != SIRTAKI_OK) {
    request->error = closed_error_;
    request->message = closed_text_;
    refused->push_back(std::move(request));
    return;
  }
  if (request->name.empty()) {
    request->key = unnamed_key(request->process_set, unnamed_calls_++);
  } else {
    const std::string scoped = scoped_name(request->process_set, request->name);
    auto [it, is_new] = names_.try_emplace(scoped);
    if (it->second.in_flight) {
      request->error = SIRTAKI_DUPLICATE_NAME;
      request->message =
          "'" + request->name +
          "' was submitted again while the first request of that name is still in flight on rank " +
          std::to_string(topology_.rank) +
          ". Wait for the first one, or give the two different names (the same on all ranks).";
      refused->push_back(std::move(request));
      return;
    }
    it->second.in_flight = true;
    if (is_new) send_up(Record::kInternName, scoped);
  }
  if (signatures_.try_emplace(request->signature).second) {
    send_up(Record::kInternSignature, request->signature);
  }
  send_submit_or_wait(std::move(request));
}

void Engine::send_submit_or_wait(RequestPtr owner) {
  Request& request = *owner;
  SignatureState& signature = signatures_[request.signature];
  if (request.key == 0) {
    NameState& name = names_[scoped_name(request.process_set, request.name)];
    request.key = name.number;
    if (request.key == 0) {
      name.waiting = &request;
      unassigned_[&request] = std::move(owner);
      return;
    }
  }
  if (signature.number == 0) {
    signature.waiting.push_back(&request);
    unassigned_[&request] = std::move(owner);
    return;
  }
  const bool gathers = request.kind == SIRTAKI_ALLGATHER;
  const SubmitRecord record{request.key, gathers ? request.tensors[0].dims[0] : 0, signature.number, 0};
  in_flight_[request.key] = std::move(owner);
  send_up(Record::kSubmit, {reinterpret_cast<const char*>(&record), sizeof record});
}

void Engine::send_up(Record type, std::string_view payload) {
  if (up_backlog_.empty() && segment_->write_up(type, payload)) return;
  up_backlog_.emplace_back(type, payload);
  has_up_backlog_.store(true, std::memory_order_seq_cst);
  // The reader may have made room, and rung, before the flag told what for.
  if (segment_->own_block().up_blocked.load(std::memory_order_seq_cst) == 0) {
    segment_->ring(segment_->local_rank());
  }
}

bool Engine::flush_backlog() {
  if (!has_up_backlog_.load(std::memory_order_acquire)) return false;
  size_t sent = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (sent < up_backlog_.size() && segment_->write_up(up_backlog_[sent].first, up_backlog_[sent].second))
      ++sent;
    up_backlog_.erase(up_backlog_.begin(), up_backlog_.begin() + static_cast<std::ptrdiff_t>(sent));
    has_up_backlog_.store(!up_backlog_.empty(), std::memory_order_release);
  }
  if (sent > 0) knock_sequencer();
  return sent > 0;
}

void Engine::knock_sequencer() {
  if (topology_.host() == 0) {
    segment_->ring(0);
  } else {
    relay_->knock();
  }
}

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

Outcome Engine::submit_and_wait(const sirtaki_request& request, const std::function<bool()>& condition) {
  if (!segment_ || !take_role()) {
    submit(request);
    return wait(condition, -1);
  }
  const RoleHolder holder(this);
  submit(request);
  return drive(condition, -1);
}

Outcome Engine::wait(const std::function<bool()>& condition, int64_t timeout_ns) {
  if (!segment_) return condition() ? Outcome::kDone : Outcome::kTimedOut;
  const int64_t deadline = timeout_ns < 0 ? -1 : now_ns() + timeout_ns;
  for (;;) {
    if (condition()) return Outcome::kDone;
    if (take_role()) {
      const RoleHolder holder(this);
      return drive(condition, deadline);
    }
    num_waiters_.fetch_add(1);
    const uint32_t seen = waiters_word_.load();
    Wake wake = Wake::kWoken;
    if (!condition() && role_.load() != 0) {
      wake = futex_wait(&waiters_word_, seen, sleep_limit(deadline), Scope::kProcess);
    }
    num_waiters_.fetch_sub(1);
    if (condition()) return Outcome::kDone;
    if (deadline >= 0 && now_ns() >= deadline) return Outcome::kTimedOut;
    if (wake != Wake::kWoken) return Outcome::kInterrupted;
  }
}

Outcome Engine::drive(const std::function<bool()>& condition, int64_t deadline_ns) {
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
      wake = futex_wait(&own.caller_word, seen, sleep_limit(deadline_ns), Scope::kShared);
    }
    own.bell_state.store(static_cast<uint32_t>(BellState::kAwake));
    spin_end = 0;
    if (condition()) return Outcome::kDone;
    if (deadline_ns >= 0 && now_ns() >= deadline_ns) return Outcome::kTimedOut;
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
      fail_all(SIRTAKI_RANKS_FAILED, segment_->failure_text());
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
      sequencer_->handle(world_.hosts[0][local], type, payload);
      progress = true;
    }
  }
  InboxRecord record;
  while (relay_->take_inbox(&record)) {
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
      if (name.waiting != nullptr) waiting.push_back(std::exchange(name.waiting, nullptr));
    } else {
      SignatureState& signature = signatures_[std::string(bytes)];
      signature.number = number;
      waiting.swap(signature.waiting);
    }
    for (Request* request : waiting) {
      const auto it = unassigned_.find(request);
      RequestPtr owner = std::move(it->second);
      unassigned_.erase(it);
      send_submit_or_wait(std::move(owner));
    }
  }
  knock_sequencer();
}

Engine::RequestPtr Engine::take_in_flight(Key key) {
  const std::lock_guard<std::mutex> lock(mutex_);
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

void Engine::on_execute(const std::string& payload) {
  Reader reader(payload);
  const auto header = reader.value<ExecuteHeader>();
  std::vector<RequestPtr> batch;
  bool missing = false;
  for (uint32_t i = 0; i < header.num_items; ++i) {
    RequestPtr request = take_in_flight(reader.value<ExecuteItem>().key);
    missing |= !request;
    if (request) batch.push_back(std::move(request));
  }
  if (missing) {
    report_broken("the log executes a tensor that this rank has not submitted");
    fail(&batch);
    complete(&batch);
    return;
  }
  std::vector<int64_t> rows;
  for (uint32_t i = 0; i < header.num_payloads; ++i) rows.push_back(reader.value<int64_t>());
  execute(header.sequence, header.process_set, rows, &batch);
}

void Engine::execute(uint64_t sequence, uint32_t, const std::vector<int64_t>& rows,
                     std::vector<RequestPtr>* batch) {
  bool moved = true;
  try {
    const DefaultFloatMode float_mode;
    switch (batch->front()->kind) {
      case SIRTAKI_ALLREDUCE:
        moved = run_allreduce(sequence, world_, *batch);
        break;
      case SIRTAKI_ALLGATHER:
        moved = run_allgather(sequence, world_, rows, batch->front().get());
        break;
      case SIRTAKI_BROADCAST:
        moved = run_broadcast(sequence, world_, batch->front().get());
        break;
      default:
        break;  // a barrier is reached when the log says so
    }
  } catch (const std::exception& e) {
    // The peers wait for this rank's part, so this is the end of the job.
    report_broken(e.what());
    moved = false;
  }
  if (!moved) fail(batch);
  counters_.batches.fetch_add(1, std::memory_order_relaxed);
  complete(batch);
}

void Engine::fail(std::vector<RequestPtr>* batch) {
  for (RequestPtr& request : *batch) {
    request->error = segment_ ? SIRTAKI_RANKS_FAILED : SIRTAKI_INTERNAL;
    request->message =
        segment_ ? segment_->failure_text() : "the engine failed while it executed the request";
  }
}

bool Engine::run_allreduce(uint64_t sequence, const SetLayout& layout, const std::vector<RequestPtr>& batch) {
  const Request& first = *batch.front();
  const Kernels& kernels = *find_kernels(first.dtype);
  Scaling scaling;
  scaling.prescale = first.prescale_factor;
  scaling.divisor = first.reduce_op == SIRTAKI_AVERAGE ? static_cast<int64_t>(layout.size()) : 1;
  scaling.postscale = first.postscale_factor;
  std::vector<Piece> pieces;
  for (const RequestPtr& request : batch) {
    for (const Tensor& tensor : request->tensors) {
      if (tensor.bytes > 0) pieces.push_back({tensor.input, tensor.output, tensor.bytes});
    }
    counters_.tensors.fetch_add(request->tensors.size(), std::memory_order_relaxed);
  }
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  counters_.bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (layout.size() > 1) return allreduce_->run(sequence, layout, kernels, scaling, pieces);
  for (const Piece& piece : pieces) {
    const void* source = piece.input;
    kernels.reduce(piece.output, &source, 1, piece.bytes / kernels.element_bytes, scaling);
  }
  return true;
}

bool Engine::run_allgather(uint64_t sequence, const SetLayout& layout, const std::vector<int64_t>& rows,
                           Request* request) {
  const Tensor& tensor = request->tensors[0];
  size_t row_bytes = dtype_size(request->dtype);
  for (size_t d = 1; d < tensor.dims.size(); ++d) row_bytes *= static_cast<size_t>(tensor.dims[d]);
  auto* output = static_cast<char*>(
      request->allocate_output(request->context, rows.data(), static_cast<int32_t>(rows.size())));
  int64_t total_rows = 0;
  for (int64_t n : rows) total_rows += n;
  if (output == nullptr && total_rows * static_cast<int64_t>(row_bytes) > 0) {
    // The peers rely on this rank's part of the exchange, so it goes through it without keeping anything.
    request->error = SIRTAKI_OUT_OF_MEMORY;
    request->message = "the result of allgather '" + request->name + "' with " + std::to_string(total_rows) +
                       " rows of " + std::to_string(row_bytes) + " bytes could not be allocated on rank " +
                       std::to_string(topology_.rank);
  }
  std::vector<Block> blocks;
  size_t offset = 0;
  for (int64_t n : rows) {
    const size_t bytes = static_cast<size_t>(n) * row_bytes;
    blocks.push_back({tensor.input, output == nullptr ? nullptr : output + offset, bytes});
    offset += bytes;
  }
  counters_.bytes.fetch_add(offset, std::memory_order_relaxed);
  counters_.tensors.fetch_add(1, std::memory_order_relaxed);
  if (layout.size() > 1) return blocks_->run(sequence, layout, blocks);
  if (offset > 0 && output != nullptr) std::memcpy(output, tensor.input, offset);
  return true;
}

bool Engine::run_broadcast(uint64_t sequence, const SetLayout& layout, Request* request) {
  counters_.tensors.fetch_add(request->tensors.size(), std::memory_order_relaxed);
  const Tensor& tensor = request->tensors[0];
  counters_.bytes.fetch_add(tensor.bytes, std::memory_order_relaxed);
  std::vector<Block> blocks;
  for (int32_t rank : layout.ranks) {
    blocks.push_back({tensor.input, tensor.output, rank == request->root_rank ? tensor.bytes : 0});
  }
  if (layout.size() > 1) return blocks_->run(sequence, layout, blocks);
  if (tensor.bytes > 0 && tensor.output != tensor.input) {
    std::memcpy(tensor.output, tensor.input, tensor.bytes);
  }
  return true;
}

// ---- Ends
// ---------------------------------------------------------------------------------------------------

void Engine::complete(std::vector<RequestPtr>* requests) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const RequestPtr& request : *requests) {
      if (request->name.empty() || !segment_) continue;
      names_[scoped_name(request->process_set, request->name)].in_flight = false;
    }
  }
  for (RequestPtr& request : *requests) finish(std::move(request));
  requests->clear();
  wake_waiters();
}

void Engine::fail_all(int32_t code, const std::string& text) {
  std::vector<RequestPtr> requests;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_error_ = code;
    closed_text_ = text;
    for (auto& [key, request] : in_flight_) requests.push_back(std::move(request));
    in_flight_.clear();
    for (auto& [pointer, request] : unassigned_) requests.push_back(std::move(request));
    unassigned_.clear();
    for (auto& [name, state] : names_) state.waiting = nullptr;
    for (auto& [bytes, state] : signatures_) state.waiting.clear();
  }
  for (const RequestPtr& request : requests) {
    request->error = code;
    request->message = text;
  }
  complete(&requests);
}

void Engine::report_broken(const std::string& what) {
  announce_failure("rank " + std::to_string(topology_.rank) + " found its engine in a broken state: " + what +
                   ". This is a defect of Sirtaki; please report it.");
}

bool Engine::announce_failure(const std::string& text) {
  if (!segment_) return false;
  const bool first = segment_->post_failure(topology_.rank, text);
  relay_->knock();
  return first;
}

void Engine::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_error_ == SIRTAKI_OK) {
    closed_error_ = SIRTAKI_NOT_INITIALIZED;
    closed_text_ = "shutdown() was called; call init() before the next collective";
  }
  if (segment_) {
    send_up(Record::kLeave, {});
    knock_sequencer();
  } else {
    own_left_.store(true);
    num_left_.store(1);
  }
}

bool Engine::may_end() const {
  if (!segment_ || segment_->failed()) return true;
  if (!own_left_.load()) return false;
  if (sequencer_) {
    const std::lock_guard<std::mutex> lock(sequencer_mutex_);
    if (!sequencer_->all_left() || !log_backlog_.empty()) return false;
  }
  if (topology_.local_rank() != 0) return true;
  for (uint32_t r = 0; r < segment_->shape().local_size; ++r) {
    if (segment_->block(r).left.load() == 0) return false;
  }
  return true;
}

bool Engine::all_left() const { return failed() || (may_end() && num_left_.load() == topology_.size()); }

void Engine::close() {
  if (!segment_) return;
  // The log must not wait for a reader that is gone.
  if (own_left_.load()) segment_->stop_reading_log();
  relay_->stop();
}

void Engine::abandon_after_fork() {
  if (!segment_) return;
  relay_->abandon_after_fork();
  // The shared memory behind these is not mapped here: not even their destructors may run.
  static_cast<void>(relay_.release());
  static_cast<void>(mpi_.release());
  static_cast<void>(stages_.release());
  static_cast<void>(segment_.release());
}

// ---- Rare events
// --------------------------------------------------------------------------------------------

bool Engine::has_rare() {
  if (!sequencer_) return false;
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  return sequencer_->has_rare_event();
}

bool Engine::take_rare_event(RareEvent* event) {
  if (!has_rare()) return false;
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  *event = sequencer_->take_rare_event();
  return true;
}

void Engine::assign_name(const std::string& scoped) {
  {
    const std::lock_guard<std::mutex> lock(sequencer_mutex_);
    sequencer_->assign_name(scoped);
  }
  segment_->ring(0);
}

void Engine::assign_signature(const std::string& signature) {
  {
    const std::lock_guard<std::mutex> lock(sequencer_mutex_);
    sequencer_->assign_signature(signature);
  }
  segment_->ring(0);
}

void Engine::post_error(Key key, int32_t rank, int32_t code, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(sequencer_mutex_);
    sequencer_->post_error(key, rank, code, text);
  }
  segment_->ring(0);
}

std::string Engine::describe(Key key) {
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  return sequencer_->describe(key);
}

std::vector<Incomplete> Engine::incomplete() const {
  if (!sequencer_) return {};
  const std::lock_guard<std::mutex> lock(sequencer_mutex_);
  return sequencer_->incomplete();
}

}  // namespace sirtaki
