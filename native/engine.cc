// Its beginning, submissions, and its ends; who drives it is in engine_driver.cc, what a batch does in
// engine_batches.cc.
#include "engine.h"

#include <utility>

#include "dtypes.h"
#include "kernels.h"
#include "signature.h"

namespace sirtaki {
namespace {

// A record must fit into the rings with room to spare; a signature this long is a group of thousands of
// tensors.
constexpr size_t kLongestRecord = 256 * 1024;

}  // namespace

Engine::Engine(EngineOptions options) : topology_(std::move(options.topology)), spin_ns_(options.spin_ns) {
  std::vector<int32_t> everybody(static_cast<size_t>(topology_.size()));
  for (size_t r = 0; r < everybody.size(); ++r) everybody[r] = static_cast<int32_t>(r);
  world_ = make_layout(topology_, everybody);
  if (topology_.size() == 1) return;

  segment_ = std::make_unique<Segment>(options.segment.get(), options.shape,
                                       static_cast<uint32_t>(topology_.local_rank()));
  stages_ = std::make_unique<StageBoard>(segment_.get(), spin_ns_, &long_wait_);
  if (options.has_mpi)
    mpi_ = std::make_unique<MpiExchange>(options.mpi, segment_.get(), spin_ns_, &long_wait_);
  const size_t slot_bytes = options.shape.slot_bytes;
  allreduce_ = std::make_unique<Allreduce>(slot_bytes, stages_.get(), mpi_.get());
  blocks_ = std::make_unique<BlockExchange>(slot_bytes, stages_.get(), mpi_.get());
  if (topology_.rank == 0) {
    sequencer_ = std::make_unique<Sequencer>(topology_.size(), options.fusion_threshold);
  }
  relay_ = std::make_unique<Relay>(topology_, segment_.get(), std::move(options.links),
                                   std::move(options.doorbell), std::move(options.labels),
                                   options.unresponsive_ns);
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

bool Engine::announce_failure(const std::string& text, int32_t code) {
  if (!segment_) return false;
  const bool first = segment_->post_failure(topology_.rank, code, text);
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
