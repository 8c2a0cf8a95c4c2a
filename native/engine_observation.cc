// What the engine tells its metrics and the timeline about a request's life.
#include "engine.h"

namespace sirtaki {
namespace {

Backend backend_of(const SetLayout& layout) {
  if (layout.size() == 1) return Backend::kLocal;
  if (layout.one_host()) return Backend::kSharedMemory;
  return layout.size() == layout.hosts.size() ? Backend::kMpi : Backend::kSharedMemoryAndMpi;
}

}  // namespace

uint64_t Engine::bytes_of(const Request& request) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : request.tensors) bytes += tensor.bytes;
  return bytes;
}

void Engine::observe_submission(Request* request) {
  if (!Timeline::is_on()) return;
  Timeline& timeline = Timeline::instance();
  request->tag = timeline.open(request->name, request->process_set);
  TimelineEvent event{};
  event.kind = TimelineEvent::Kind::kSubmitted;
  event.collective = request->kind;
  event.session = request->tag.session;
  event.lane = request->tag.lane;
  event.bytes = bytes_of(*request);
  event.submitted_ns = request->tag.submitted_ns;
  timeline.record(event);
}

// A batch that was moved; before its requests are done.
void Engine::observe_batch(const Batch& batch, const PhaseTimes& times, uint64_t waited_before_ns) {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  for (const RequestPtr& request : batch.requests) {
    tensors += request->tensors.size();
    bytes += bytes_of(*request);
  }
  metrics_->count_batch(batch.requests.front()->kind, batch.requests.size(), tensors, bytes);
  if (!Timeline::is_on() || times.begin_ns() == 0) return;
  Timeline& timeline = Timeline::instance();
  TimelineEvent event{};
  event.session = timeline.session();
  event.backend = backend_of(batch.layout);
  event.batch = batch.sequence;
  event.batch_tensors = static_cast<uint32_t>(tensors);
  event.num_chunks = times.num_chunks();
  event.decided_ns = batch.decided_ns;
  event.begin_ns = times.begin_ns();
  event.end_ns = times.end_ns();
  event.wait_ns = static_cast<int64_t>(metrics_->total_data_wait_ns() - waited_before_ns);
  event.phase_ns = times.phase_ns();
  if (timeline.marks_batches()) {
    event.kind = TimelineEvent::Kind::kBatch;
    event.num_tensors = event.batch_tensors;
    event.bytes = bytes;
    timeline.record(event);
  }
  event.kind = TimelineEvent::Kind::kDone;
  for (const RequestPtr& request : batch.requests) {
    if (request->tag.session != event.session) continue;
    event.collective = request->kind;
    event.reduce_op = request->reduce_op;
    event.dtype = request->dtype;
    event.lane = request->tag.lane;
    event.num_tensors = static_cast<uint32_t>(request->tensors.size());
    event.bytes = bytes_of(*request);
    event.submitted_ns = request->tag.submitted_ns;
    timeline.record(event);
    request->tag.session = 0;
  }
}

// Requests that end without having been moved still have a begin without an end in the timeline.
void Engine::observe_end(Request* request) {
  if (request->tag.session == 0 || !Timeline::is_on()) return;
  Timeline& timeline = Timeline::instance();
  if (request->tag.session != timeline.session()) return;
  TimelineEvent event{};
  event.kind = TimelineEvent::Kind::kFailed;
  event.session = request->tag.session;
  event.lane = request->tag.lane;
  event.end_ns = now_ns();
  timeline.record(event);
}

}  // namespace sirtaki
