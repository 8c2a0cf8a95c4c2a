// Its beginning and its ends; submissions are in engine_submission.cc, who drives it is in engine_driver.cc,
// what a batch does in engine_batches.cc.
#include "engine.h"

#include <utility>

namespace sirtaki {

Engine::Engine(EngineOptions options) : topology_(std::move(options.topology)), spin_ns_(options.spin_ns) {
  std::vector<int32_t> everybody(static_cast<size_t>(topology_.size()));
  for (size_t r = 0; r < everybody.size(); ++r) everybody[r] = static_cast<int32_t>(r);
  world_ = make_layout(topology_, everybody);
  sets_[0] = {everybody, world_, true, 0};
  metrics_ = std::make_shared<Metrics>(topology_.size());
  if (topology_.size() == 1) return;

  segment_ = std::make_unique<Segment>(options.segment.get(), options.shape,
                                       static_cast<uint32_t>(topology_.local_rank()));
  data_ = std::make_unique<DataPlane>(segment_.get(), spin_ns_, &long_wait_,
                                      options.has_mpi ? &options.mpi : nullptr);
  data_->stages.count_waits(metrics_.get(), world_.hosts[world_.my_host]);
  if (data_->mpi) data_->mpi->count_waits(metrics_.get());
  if (topology_.rank == 0) {
    sequencer_ =
        std::make_unique<Sequencer>(topology_.size(), options.fusion_threshold, options.cache_capacity);
  }
  relay_ = std::make_unique<Relay>(topology_, segment_.get(), std::move(options.links),
                                   std::move(options.doorbell), std::move(options.labels),
                                   options.unresponsive_ns);
}

bool Engine::locate(uint32_t process_set, sirtaki_position* position) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto set = sets_.find(process_set);
  if (set == sets_.end()) return false;
  const ProcessSet& found = set->second;
  position->rank = found.is_member ? static_cast<int32_t>(found.layout.my_member()) : -1;
  position->size = static_cast<int32_t>(found.ranks.size());
  position->my_rank = topology_.rank;
  position->num_ranks = topology_.size();
  position->local_rank = topology_.local_rank();
  position->local_size = topology_.local_size();
  return true;
}

Engine::~Engine() {
  close();
  if (failed() && data_->mpi) {
    // MPI may still write into the buffers of transfers that were given up; the process is about to end.
    static_cast<void>(data_.release());
    static_cast<void>(segment_.release());
  }
}

// ---- Ends
// ---------------------------------------------------------------------------------------------------

void Engine::complete(std::vector<RequestPtr>* requests) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const RequestPtr& request : *requests) {
      observe_end(request.get());
      if (request->name.empty()) continue;
      // It may be gone with its process set.
      const auto it = names_.find(scoped_name(request->process_set, request->name));
      if (it == names_.end()) continue;
      it->second.in_flight = false;
      if (it->second.number == 0 && !it->second.asked) names_.erase(it);  // forgotten meanwhile
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
    if (joining_) requests.push_back(std::move(joining_));
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
  const bool first = segment_->post_failure(topology_.rank, text, code);
  relay_->knock();
  return first;
}

void Engine::leave() {
  if (failed()) return;  // nobody is to hear that this rank left who has not heard why
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
  if (own_left_.load()) {
    segment_->stop_reading_log();
    // It may wait for this reader already, and for no other that would tell it of room.
    if (segment_->header().log_blocked.exchange(0) != 0) knock_sequencer();
  }
  relay_->stop();
}

void Engine::abandon_after_fork() {
  if (!segment_) return;
  relay_->abandon_after_fork();
  // The shared memory behind these is not mapped here: not even their destructors may run.
  static_cast<void>(relay_.release());
  static_cast<void>(data_.release());
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

void Engine::refuse(Key key, int32_t code, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(sequencer_mutex_);
    sequencer_->refuse(key, code, text);
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
