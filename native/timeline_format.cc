// What an event looks like in the file: lines of the Chrome trace format, see docs/observability.md.
#include <algorithm>

#include "engine_abi.h"
#include "timeline.h"
#include "timeline_text.h"

namespace sirtaki {
namespace {

constexpr std::array<ShortText, 9> kCollectives{{{"allreduce"},
                                                 {"allgather"},
                                                 {"broadcast"},
                                                 {"barrier"},
                                                 {"alltoall"},
                                                 {"reducescatter"},
                                                 {"join"},
                                                 {"add_process_set"},
                                                 {"remove_process_set"}}};
constexpr std::array<ShortText, 6> kReduceOps{
    {{"average"}, {"sum"}, {"adasum"}, {"min"}, {"max"}, {"product"}}};
constexpr std::array<ShortText, 15> kTypes{{{"bool"},
                                            {"uint8"},
                                            {"int8"},
                                            {"uint16"},
                                            {"int16"},
                                            {"uint32"},
                                            {"int32"},
                                            {"uint64"},
                                            {"int64"},
                                            {"float16"},
                                            {"bfloat16"},
                                            {"float32"},
                                            {"float64"},
                                            {"complex64"},
                                            {"complex128"}}};
constexpr std::array<ShortText, 4> kBackends{{{"local"}, {"shared-memory"}, {"shared-memory+mpi"}, {"mpi"}}};
constexpr std::array<ShortText, kNumPhases> kPhases{{{"pack"}, {"reduce"}, {"unpack"}}};
constexpr ShortText kUnknown{"unknown"}, kNegotiate{"negotiate"}, kQueue{"queue"}, kBatch{"batch"};

// More than an event's lines take; a lane's name comes on top.
constexpr size_t kMostPerEvent = 4096;

template <size_t N>
const ShortText& name_of(const std::array<ShortText, N>& names, int64_t number) {
  return number >= 0 && static_cast<size_t>(number) < N ? names[static_cast<size_t>(number)] : kUnknown;
}

// `place`: the process and the lane, ready made.
void put_slice(TimelineText* out, const ShortText& place, int64_t begin, int64_t end, const ShortText& name) {
  out->put("{\"ph\":\"X\",");
  out->put(place);
  out->put_moment(begin);
  out->put(",\"dur\":");
  out->put_time(end - begin);
  out->put(",\"name\":\"");
  out->put(name);
}

}  // namespace

void Timeline::name_lane(uint32_t lane, TimelineText* lines) {
  if (lane < places_.size() && places_[lane].size > 0) return;
  if (lane >= places_.size()) {
    places_.resize(lane + 1);
    is_open_.resize(lane + 1);
  }
  places_[lane] =
      ShortText("\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(lane) + ",\"ts\":");
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  lines->reserve(kMostPerEvent + 6 * lanes_[lane].size());
  lines->put("{\"ph\":\"M\",");
  lines->put(places_[lane]);
  lines->put("0,\"name\":\"thread_name\",\"args\":{\"name\":\"");
  lines->put_escaped(lanes_[lane]);
  lines->put("\"}},\n");
}

void Timeline::format(const TimelineEvent& e, TimelineText* lines) {
  name_lane(e.lane, lines);
  lines->reserve(kMostPerEvent);
  const ShortText& place = places_[e.lane];
  switch (e.kind) {
    case TimelineEvent::Kind::kSubmitted:
      lines->put("{\"ph\":\"B\",");
      lines->put(place);
      lines->put_moment(e.submitted_ns);
      lines->put(",\"name\":\"negotiate\",\"args\":{\"collective\":\"");
      lines->put(name_of(kCollectives, e.collective));
      lines->put("\",\"bytes\":");
      lines->put_number(e.bytes);
      lines->put("}},\n");
      is_open_[e.lane] = true;
      return;
    case TimelineEvent::Kind::kDone:
      format_tensor(e, lines);
      release_lane(e);
      return;
    case TimelineEvent::Kind::kFailed:
      if (is_open_[e.lane]) {
        lines->put("{\"ph\":\"E\",");
        lines->put(place);
        lines->put_moment(e.end_ns);
        lines->put(",\"args\":{\"failed\":true}},\n");
        is_open_[e.lane] = false;
      }
      release_lane(e);
      return;
    case TimelineEvent::Kind::kBatch:
      put_slice(lines, place, e.begin_ns, e.end_ns, kBatch);
      lines->put("\",\"args\":{\"batch\":");
      lines->put_number(e.batch);
      lines->put(",\"tensors\":");
      lines->put_number(e.num_tensors);
      lines->put(",\"bytes\":");
      lines->put_number(e.bytes);
      lines->put("}},\n");
      return;
  }
}

void Timeline::format_tensor(const TimelineEvent& e, TimelineText* lines) {
  const ShortText& place = places_[e.lane];
  // Ends are never before beginnings, whatever the clocks of the log's writer say.
  const int64_t decided = std::clamp(e.decided_ns, e.submitted_ns, std::max(e.submitted_ns, e.begin_ns));
  const int64_t begin = std::max(decided, e.begin_ns);
  const int64_t end = std::max(begin, e.end_ns);
  if (is_open_[e.lane]) {
    lines->put("{\"ph\":\"E\",");
    lines->put(place);
    lines->put_moment(decided);
    lines->put("},\n");
    is_open_[e.lane] = false;
  } else {
    put_slice(lines, place, e.submitted_ns, decided, kNegotiate);
    lines->put("\"},\n");
  }
  put_slice(lines, place, decided, end, name_of(kCollectives, e.collective));
  lines->put("\",\"args\":{\"backend\":\"");
  lines->put(name_of(kBackends, static_cast<int64_t>(e.backend)));
  if (e.collective != SIRTAKI_BARRIER) {
    lines->put("\",\"dtype\":\"");
    lines->put(name_of(kTypes, e.dtype));
  }
  if (e.collective == SIRTAKI_ALLREDUCE || e.collective == SIRTAKI_REDUCESCATTER) {
    lines->put("\",\"op\":\"");
    lines->put(name_of(kReduceOps, e.reduce_op));
  }
  lines->put("\",\"bytes\":");
  lines->put_number(e.bytes);
  lines->put(",\"tensors\":");
  lines->put_number(e.num_tensors);
  lines->put(",\"batch\":");
  lines->put_number(e.batch);
  lines->put(",\"batch_tensors\":");
  lines->put_number(e.batch_tensors);
  lines->put(",\"chunks\":");
  lines->put_number(e.num_chunks);
  lines->put(",\"wait_us\":");
  lines->put_time(e.wait_ns);
  lines->put("}},\n");
  put_slice(lines, place, decided, begin, kQueue);
  lines->put("\"},\n");
  int64_t at = begin;
  for (size_t p = 0; p < kNumPhases; ++p) {
    if (e.phase_ns[p] == 0) continue;
    const int64_t until = std::min(end, at + e.phase_ns[p]);
    put_slice(lines, place, at, until, kPhases[p]);
    lines->put("\"},\n");
    at = until;
  }
}

void Timeline::format_lost(uint64_t count, TimelineText* lines) {
  name_lane(0, lines);
  lines->reserve(kMostPerEvent);
  lines->put("{\"ph\":\"i\",\"s\":\"p\",");
  lines->put(places_[0]);
  lines->put_time(now_ns());
  lines->put(",\"name\":\"");
  lines->put_number(count);
  lines->put(" events lost\"},\n");
}

}  // namespace sirtaki
