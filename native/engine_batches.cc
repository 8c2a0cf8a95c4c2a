// Batches that the log says to execute: their requests are put together, moved through the data plane, and
// done.
#include <algorithm>
#include <cstring>
#include <exception>

#include "dtypes.h"
#include "engine.h"
#include "kernels.h"

namespace sirtaki {
namespace {

// Bytes of one row: of what lies behind one index of the first dimension.
size_t row_bytes_of(const std::vector<int64_t>& dims, int32_t dtype) {
  size_t bytes = dtype_size(dtype);
  for (size_t d = 1; d < dims.size(); ++d) bytes *= static_cast<size_t>(dims[d]);
  return bytes;
}

}  // namespace

void Engine::on_execute(const std::string& payload) {
  Reader reader(payload);
  const auto header = reader.value<ExecuteHeader>();
  const auto set = sets_.find(header.process_set);
  if (set == sets_.end() || !set->second.is_member) return;
  std::vector<Key> keys;
  for (uint32_t i = 0; i < header.num_items; ++i) {
    const auto item = reader.value<ExecuteItem>();
    keys.push_back(item.key);
    metrics_->count_last(item.last_rank, item.waited_ns);
  }
  Batch batch{header.sequence, set->second.ranks, {}, {}, {}, header.decided_ns};
  for (uint32_t i = 0; i < header.num_payloads; ++i) batch.payloads.push_back(reader.value<int64_t>());
  if (header.num_absent == 0) {
    batch.layout = set->second.layout;
  } else {
    std::vector<int32_t> present = set->second.ranks;
    for (uint32_t i = 0; i < header.num_absent; ++i) {
      const auto rank = reader.value<int32_t>();
      if (rank == topology_.rank) return;  // this rank has joined
      present.erase(std::lower_bound(present.begin(), present.end(), rank));
    }
    batch.layout = make_layout(topology_, present);
  }
  bool missing = false;
  for (Key key : keys) {
    RequestPtr request = take_in_flight(key);
    missing |= !request;
    if (request) batch.requests.push_back(std::move(request));
  }
  if (missing) {
    report_broken("the log executes a tensor that this rank has not submitted");
    fail(&batch.requests);
    complete(&batch.requests);
    return;
  }
  execute(&batch);
}

void Engine::execute(Batch* batch) {
  metrics_->count_begin();
  bool moved = true;
  const bool traced = Timeline::is_on();
  const uint64_t waited_before_ns = traced ? metrics_->total_data_wait_ns() : 0;
  PhaseTimes times(traced);
  try {
    const DefaultFloatMode float_mode;
    moved = run(*batch);
    times.finish();
    if (moved) observe_batch(*batch, times, waited_before_ns);
  } catch (const std::exception& e) {
    // The peers wait for this rank's part, so this is the end of the job.
    report_broken(e.what());
    moved = false;
  }
  if (!moved) fail(&batch->requests);
  complete(&batch->requests);
}

void Engine::fail(std::vector<RequestPtr>* requests) {
  for (RequestPtr& request : *requests) {
    request->error = segment_ ? segment_->failure_code() : SIRTAKI_INTERNAL;
    request->message =
        segment_ ? segment_->failure_text() : "the engine failed while it executed the request";
  }
}

bool Engine::run(const Batch& batch) {
  const Request& first = *batch.requests.front();
  switch (first.kind) {
    case SIRTAKI_ALLREDUCE:
      return first.reduce_op == SIRTAKI_ADASUM ? run_adasum(batch) : run_allreduce(batch);
    case SIRTAKI_REDUCESCATTER:
      return run_reducescatter(batch);
    case SIRTAKI_ALLGATHER:
      return run_allgather(batch);
    case SIRTAKI_ALLTOALL:
      return run_alltoall(batch);
    case SIRTAKI_BROADCAST:
      return run_broadcast(batch);
    case SIRTAKI_ADD_PROCESS_SET:
      add_process_set(batch);
      return true;
    case SIRTAKI_REMOVE_PROCESS_SET:
      remove_process_set(batch);
      return true;
    default:
      return true;  // a barrier is reached when the log says so; the join of a single rank likewise
  }
}

Scaling Engine::scaling_of(const Batch& batch) {
  const Request& first = *batch.requests.front();
  Scaling scaling;
  scaling.prescale = first.prescale_factor;
  // A member that has joined counts as one that gives zeros.
  const auto num_members = static_cast<int64_t>(batch.members.size());
  scaling.divisor = first.reduce_op == SIRTAKI_AVERAGE ? num_members : 1;
  scaling.postscale = first.postscale_factor;
  return scaling;
}

bool Engine::run_allreduce(const Batch& batch) {
  const Request& first = *batch.requests.front();
  const Kernels& kernels = *find_kernels(first.dtype, first.reduce_op);
  const Scaling scaling = scaling_of(batch);
  std::vector<Piece> pieces;
  for (const RequestPtr& request : batch.requests) {
    for (const Tensor& tensor : request->tensors) {
      if (tensor.bytes > 0) pieces.push_back({tensor.input, tensor.output, tensor.bytes});
    }
  }
  if (batch.layout.size() > 1) {
    Tickets tickets(batch.sequence);
    return data_->allreduce.run(&tickets, batch.layout, kernels, scaling, pieces);
  }
  enter_phase(Phase::kReduce);
  for (const Piece& piece : pieces) {
    const void* source = piece.input;
    kernels.reduce(piece.output, &source, 1, piece.bytes / kernels.element_bytes, scaling);
  }
  return true;
}

bool Engine::run_adasum(const Batch& batch) {
  const Request& first = *batch.requests.front();
  const Kernels& sum = *find_kernels(first.dtype, SIRTAKI_SUM);
  const Kernels& doubles = *find_kernels(SIRTAKI_FLOAT64, SIRTAKI_SUM);
  const Scaling scaling = scaling_of(batch);
  Tickets tickets(batch.sequence);
  for (const RequestPtr& request : batch.requests) {
    for (const Tensor& tensor : request->tensors) {
      if (tensor.bytes == 0) continue;
      const Piece piece{tensor.input, tensor.output, tensor.bytes};
      const void* source = tensor.input;
      if (batch.layout.size() == 1) {
        sum.reduce(tensor.output, &source, 1, tensor.bytes / sum.element_bytes, scaling);
      } else if (!data_->adasum.run(&tickets, batch.layout, sum, doubles, scaling, piece)) {
        return false;
      }
    }
  }
  return true;
}

bool Engine::run_reducescatter(const Batch& batch) {
  const Request& first = *batch.requests.front();
  const Kernels& kernels = *find_kernels(first.dtype, first.reduce_op);
  const Scaling scaling = scaling_of(batch);
  const auto num_members = static_cast<int64_t>(batch.layout.size());
  std::vector<std::vector<Piece>> shares(batch.layout.size());
  for (const RequestPtr& request : batch.requests) {
    for (const Tensor& tensor : request->tensors) {
      const size_t row_bytes = row_bytes_of(tensor.dims, request->dtype);
      const int64_t each = tensor.dims[0] / num_members;
      const int64_t longer = tensor.dims[0] % num_members;
      const char* input = tensor.input;
      for (int64_t m = 0; m < num_members; ++m) {
        const size_t bytes = static_cast<size_t>(each + (m < longer ? 1 : 0)) * row_bytes;
        if (bytes > 0) shares[static_cast<size_t>(m)].push_back({input, tensor.output, bytes});
        if (bytes > 0) input += bytes;
      }
    }
  }
  if (batch.layout.size() > 1) {
    Tickets tickets(batch.sequence);
    return data_->reduce_scatter.run(&tickets, batch.layout, kernels, scaling, shares);
  }
  enter_phase(Phase::kReduce);
  for (const Piece& piece : shares[0]) {
    const void* source = piece.input;
    kernels.reduce(piece.output, &source, 1, piece.bytes / kernels.element_bytes, scaling);
  }
  return true;
}

// Memory for a result of unknown size. Without it this rank still goes through the exchange, since its peers
// rely on its part, and keeps nothing.
char* Engine::allocate(Request* request, size_t tensor, const std::vector<int64_t>& rows, size_t row_bytes) {
  auto* output = static_cast<char*>(request->allocate_output(request->context, static_cast<int32_t>(tensor),
                                                             rows.data(), static_cast<int32_t>(rows.size())));
  int64_t total_rows = 0;
  for (int64_t n : rows) total_rows += n;
  if (output == nullptr && total_rows * static_cast<int64_t>(row_bytes) > 0) {
    request->error = SIRTAKI_OUT_OF_MEMORY;
    request->message = "the result of '" + request->name + "' with " + std::to_string(total_rows) +
                       " rows of " + std::to_string(row_bytes) + " bytes could not be allocated on rank " +
                       std::to_string(topology_.rank);
  }
  return output;
}

// `payloads` has, per member of the set, the rows of each tensor; those that take no part have none.
bool Engine::run_allgather(const Batch& batch) {
  Request* request = batch.requests.front().get();
  const size_t num_tensors = request->tensors.size();
  const size_t num_members = batch.members.size();
  std::vector<Block> by_member(num_members);
  for (size_t t = 0; t < num_tensors; ++t) {
    const Tensor& tensor = request->tensors[t];
    const size_t row_bytes = row_bytes_of(tensor.dims, request->dtype);
    std::vector<int64_t> rows(num_members);
    for (size_t m = 0; m < num_members; ++m) rows[m] = batch.payloads[m * num_tensors + t];
    char* output = allocate(request, t, rows, row_bytes);
    size_t offset = 0;
    for (size_t m = 0; m < num_members; ++m) {
      const size_t bytes = static_cast<size_t>(rows[m]) * row_bytes;
      Block& block = by_member[m];
      block.bytes += bytes;
      if (bytes > 0)
        block.pieces.push_back({tensor.input, output == nullptr ? nullptr : output + offset, bytes});
      offset += bytes;
    }
  }
  const bool wanted = request->error == SIRTAKI_OK;
  std::vector<Block> blocks;
  for (size_t m = 0; m < num_members; ++m) {
    if (!batch.layout.contains(batch.members[m])) continue;
    by_member[m].wanted = wanted;
    blocks.push_back(std::move(by_member[m]));
  }
  if (batch.layout.size() > 1) {
    Tickets tickets(batch.sequence);
    return data_->blocks.run(&tickets, batch.layout, blocks);
  }
  for (const Piece& piece : blocks[0].pieces) {
    if (wanted) std::memcpy(piece.output, piece.input, piece.bytes);
  }
  return true;
}

// `payloads` has the splits of each member.
bool Engine::run_alltoall(const Batch& batch) {
  Request* request = batch.requests.front().get();
  const Tensor& tensor = request->tensors[0];
  const size_t n = batch.layout.size();
  const size_t me = batch.layout.my_member();
  const size_t row_bytes = row_bytes_of(tensor.dims, request->dtype);
  std::vector<int64_t> received(n);
  for (size_t m = 0; m < n; ++m) received[m] = batch.payloads[m * n + me];
  char* output = allocate(request, 0, received, row_bytes);
  std::vector<size_t> bytes(n * n);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<size_t>(batch.payloads[i]) * row_bytes;
  std::vector<Alltoall::Part> parts(n);
  const char* in = tensor.input;
  char* out = output;
  for (size_t m = 0; m < n; ++m) {
    parts[m] = {in, out};
    if (bytes[me * n + m] > 0) in += bytes[me * n + m];
    if (out != nullptr) out += bytes[m * n + me];
  }
  if (n > 1) {
    Tickets tickets(batch.sequence);
    return data_->alltoall.run(&tickets, batch.layout, bytes, parts);
  }
  if (bytes[0] > 0 && output != nullptr) std::memcpy(output, tensor.input, bytes[0]);
  return true;
}

bool Engine::run_broadcast(const Batch& batch) {
  Request* request = batch.requests.front().get();
  std::vector<Piece> pieces;
  for (const Tensor& tensor : request->tensors) {
    if (tensor.bytes > 0) pieces.push_back({tensor.input, tensor.output, tensor.bytes});
  }
  if (batch.layout.size() > 1) {
    std::vector<Block> blocks(batch.layout.size());
    Block& root = blocks[batch.layout.member_of(request->root_rank)];
    root.bytes = total_bytes(pieces);
    root.pieces = std::move(pieces);
    Tickets tickets(batch.sequence);
    return data_->blocks.run(&tickets, batch.layout, blocks);
  }
  for (const Piece& piece : pieces) {
    if (piece.output != piece.input) std::memcpy(piece.output, piece.input, piece.bytes);
  }
  return true;
}

void Engine::add_process_set(const Batch& batch) {
  const Request& request = *batch.requests.front();
  ProcessSet set;
  set.ranks.assign(request.values.begin(), request.values.end());
  set.is_member = std::binary_search(set.ranks.begin(), set.ranks.end(), topology_.rank);
  if (set.is_member) set.layout = make_layout(topology_, set.ranks);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sets_[static_cast<uint32_t>(batch.payloads.at(0))] = std::move(set);
  }
  request.set_result(request.context, batch.payloads[0]);
}

// What is in flight in the set ends here, on every rank at the same place in the log.
void Engine::remove_process_set(const Batch& batch) {
  const auto number = static_cast<uint32_t>(batch.payloads.at(0));
  std::vector<RequestPtr> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sets_.erase(number);
    const auto take = [&](auto* requests) {
      for (auto it = requests->begin(); it != requests->end();) {
        if (it->second->process_set != number) {
          ++it;
          continue;
        }
        ended.push_back(std::move(it->second));
        it = requests->erase(it);
      }
    };
    take(&in_flight_);
    take(&unassigned_);
    for (auto it = names_.begin(); it != names_.end();) {
      const bool gone = Reader(it->first).value<uint32_t>() == number;
      it = gone ? names_.erase(it) : std::next(it);
    }
  }
  for (RequestPtr& request : ended) {
    request->error = SIRTAKI_INVALID_ARGUMENT;
    request->message = (request->name.empty() ? "this call" : "'" + request->name + "'") +
                       " was in flight in process set " + std::to_string(number) +
                       " when the set was removed";
  }
  complete(&ended);
}

}  // namespace sirtaki
