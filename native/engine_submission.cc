// Submission: a request is checked, filed under its key, and told to the sequencer once its name and
// signature have numbers.
#include <algorithm>
#include <numeric>
#include <utility>

#include "dtypes.h"
#include "engine.h"
#include "kernels.h"
#include "signature.h"

namespace sirtaki {
namespace {

// A record must fit into the rings with room to spare; a signature this long is a group of thousands of
// tensors.
constexpr size_t kLongestRecord = 256 * 1024;
// The log entry of an alltoall holds the square of this many numbers.
constexpr size_t kMostRanksOfAlltoall = 256;
// That of an allgather has one number per tensor and rank.
constexpr size_t kMostRowCounts = 128 * 1024;

std::string list(const std::vector<int32_t>& ranks) {
  std::string out;
  for (int32_t rank : ranks) out += (out.empty() ? "" : ", ") + std::to_string(rank);
  return out;
}

}  // namespace

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
  request->set_result = r.set_result;
  request->done = r.done;
  if (r.num_values > 0) request->values.assign(r.values, r.values + r.num_values);
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

std::string Engine::fault_of(const sirtaki_request& r) const {
  const auto set = sets_.find(static_cast<uint32_t>(r.process_set));
  if (set == sets_.end()) {
    return "names process set " + std::to_string(r.process_set) +
           ", which does not exist or has been removed";
  }
  if (!set->second.is_member) {
    return "was called on rank " + std::to_string(topology_.rank) + ", which is not in process set " +
           std::to_string(r.process_set) + "; its ranks are " + list(set->second.ranks);
  }
  const bool reduces = r.kind == SIRTAKI_ALLREDUCE || r.kind == SIRTAKI_REDUCESCATTER;
  if (r.num_tensors > 0 && dtype_size(r.dtype) == 0) return "has an unknown type";
  if (reduces && !is_reducible(r.dtype, r.reduce_op)) return "has a type that does not go with the operation";
  if (r.kind == SIRTAKI_REDUCESCATTER && r.reduce_op == SIRTAKI_ADASUM) {
    return "is a reducescatter with Adasum, which exists for allreduce only";
  }
  const bool has_rows =
      r.kind == SIRTAKI_ALLGATHER || r.kind == SIRTAKI_ALLTOALL || r.kind == SIRTAKI_REDUCESCATTER;
  for (int32_t t = 0; has_rows && t < r.num_tensors; ++t) {
    if (r.tensors[t].num_dims == 0) {
      return "has a scalar: tensors are joined or split along their first dimension, so give it one";
    }
  }
  const size_t num_members = set->second.ranks.size();
  if (r.kind == SIRTAKI_ALLGATHER && static_cast<size_t>(r.num_tensors) * num_members > kMostRowCounts) {
    return "has too many tensors in one group: at most " + std::to_string(kMostRowCounts / num_members) +
           " can be gathered at once by " + std::to_string(num_members) + " ranks; split the group";
  }
  if (r.kind == SIRTAKI_BROADCAST && !set->second.layout.contains(r.root_rank)) {
    return "has root rank " + std::to_string(r.root_rank) + ", but the ranks are " + list(set->second.ranks);
  }
  return fault_of_values(r, set->second);
}

std::string Engine::fault_of_values(const sirtaki_request& r, const ProcessSet& set) const {
  const int64_t* values_end = r.values + r.num_values;
  if (r.kind == SIRTAKI_ALLTOALL) {
    if (set.ranks.size() > kMostRanksOfAlltoall) {
      return "is an alltoall among " + std::to_string(set.ranks.size()) + " ranks; at most " +
             std::to_string(kMostRanksOfAlltoall) + " are possible";
    }
    const int64_t rows = r.tensors[0].dims[0];
    const bool negative = std::any_of(r.values, values_end, [](int64_t n) { return n < 0; });
    const bool fits = static_cast<size_t>(r.num_values) == set.ranks.size() && !negative &&
                      std::accumulate(r.values, values_end, int64_t{0}) == rows;
    if (!fits) {
      return "has splits that do not fit: there must be one for each of the " +
             std::to_string(set.ranks.size()) + " ranks, none negative, which add up to the " +
             std::to_string(rows) + " rows of the tensor";
    }
  }
  if (r.kind == SIRTAKI_ADD_PROCESS_SET) {
    const bool ascends = std::adjacent_find(r.values, values_end, std::greater_equal<>()) == values_end;
    if (r.num_values == 0 || !ascends || r.values[0] < 0 || values_end[-1] >= topology_.size()) {
      return "has ranks that do not fit: give each once, from 0 to " + std::to_string(topology_.size() - 1);
    }
  }
  if (r.kind == SIRTAKI_REMOVE_PROCESS_SET) {
    const int64_t number = r.values[0];
    if (number == 0) return "is about process set 0, all ranks, which cannot be removed";
    if (number < 0 || sets_.count(static_cast<uint32_t>(number)) == 0) {
      return "is about process set " + std::to_string(number) + ", which does not exist or has been removed";
    }
  }
  return {};
}

void Engine::submit(const sirtaki_request& r) {
  RequestPtr request = copy_request(r);
  std::vector<RequestPtr> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string fault = closed_error_ == SIRTAKI_OK ? fault_of(r) : std::string();
    if (request->signature.size() > kLongestRecord || request->name.size() > kLongestRecord) {
      fault = "has too many tensors in one group, or too long a name: split the group";
    }
    if (closed_error_ != SIRTAKI_OK) {
      request->error = closed_error_;
      request->message = closed_text_;
    } else if (!fault.empty()) {
      request->error = SIRTAKI_INVALID_ARGUMENT;
      request->message = (request->name.empty() ? "this call " : "'" + request->name + "' ") + fault;
    } else if (joining_) {
      request->error = SIRTAKI_INVALID_ARGUMENT;
      request->message = "rank " + std::to_string(topology_.rank) +
                         " has called join() and gives nothing until all ranks have joined";
    }
    if (request->error != SIRTAKI_OK) {
      ended.push_back(std::move(request));
    } else if (segment_) {
      file(std::move(request), &ended);
    }
  }
  for (RequestPtr& refused : ended) finish(std::move(refused));
  if (!segment_) {
    if (request) run_alone(std::move(request));
    return;
  }
  knock_sequencer();
}

// In a job of one rank everything is ready at once, in the thread that submits it.
void Engine::run_alone(RequestPtr request) {
  Batch batch{0, world_.ranks, world_, {}, {}, 0};
  observe_submission(request.get());
  if (request->kind == SIRTAKI_ALLGATHER) {
    for (const Tensor& tensor : request->tensors) batch.payloads.push_back(tensor.dims[0]);
  }
  if (request->kind == SIRTAKI_ALLTOALL || request->kind == SIRTAKI_REMOVE_PROCESS_SET) {
    batch.payloads = request->values;
  }
  if (request->kind == SIRTAKI_ADD_PROCESS_SET) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch.payloads.push_back(next_set_alone_++);
  }
  if (request->kind == SIRTAKI_JOIN) request->set_result(request->context, 0);
  batch.requests.push_back(std::move(request));
  execute(&batch);
}

void Engine::file(RequestPtr request, std::vector<RequestPtr>* refused) {
  if (request->kind == SIRTAKI_JOIN) {
    joining_ = std::move(request);
    send_join_when_due();
    return;
  }
  if (request->name.empty()) {
    request->key = unnamed_key(request->process_set, sets_[request->process_set].unnamed_calls++);
  } else {
    NameState& name = names_[scoped_name(request->process_set, request->name)];
    if (name.in_flight) {
      request->error = SIRTAKI_DUPLICATE_NAME;
      request->message =
          "'" + request->name +
          "' was submitted again while the first request of that name is still in flight on rank " +
          std::to_string(topology_.rank) +
          ". Wait for the first one, or give the two different names (the same on all ranks).";
      refused->push_back(std::move(request));
      return;
    }
    name.in_flight = true;
  }
  observe_submission(request.get());
  const size_t num_unassigned = unassigned_.size();
  send_submit_or_wait(std::move(request));
  metrics_->count_request(unassigned_.size() == num_unassigned);
}

void Engine::send_submit_or_wait(RequestPtr owner) {
  Request& request = *owner;
  SignatureState& signature = signatures_[request.signature];
  if (signature.number == 0 && !signature.asked) {
    signature.asked = true;
    send_up(Record::kInternSignature, request.signature);
  }
  if (request.key == 0) {
    const std::string scoped = scoped_name(request.process_set, request.name);
    NameState& name = names_[scoped];
    request.key = name.number;
    if (name.number == 0) {
      if (!name.asked) send_up(Record::kInternName, scoped);
      name.asked = true;
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
  send_submit(std::move(owner));
}

void Engine::send_submit(RequestPtr owner) {
  const Request& request = *owner;
  std::vector<int64_t> payloads;
  if (request.kind == SIRTAKI_ALLGATHER) {
    for (const Tensor& tensor : request.tensors) payloads.push_back(tensor.dims[0]);
  }
  if (request.kind == SIRTAKI_ALLTOALL) payloads = request.values;
  std::string record;
  Writer writer(&record);
  const uint32_t signature = signatures_[request.signature].number;
  writer.value(SubmitRecord{request.key, signature, static_cast<uint32_t>(payloads.size())});
  for (int64_t value : payloads) writer.value(value);
  in_flight_[request.key] = std::move(owner);
  send_up(Record::kSubmit, record);
}

// A rank's join tells the sequencer that no submission of its will come: those that wait for a number go
// first.
void Engine::send_join_when_due() {
  if (!joining_ || join_sent_ || !unassigned_.empty()) return;
  join_sent_ = true;
  send_up(Record::kJoin, {});
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

}  // namespace sirtaki
