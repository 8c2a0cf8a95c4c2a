// Batches that the log says to execute: their requests are put together, moved through the data plane, and
// done.
#include <cstring>
#include <exception>

#include "dtypes.h"
#include "engine.h"
#include "kernels.h"

namespace sirtaki {

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
    request->error = segment_ ? segment_->failure_code() : SIRTAKI_INTERNAL;
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

}  // namespace sirtaki
