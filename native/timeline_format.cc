// What an event looks like in the file: lines of the Chrome trace format, see docs/observability.md.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "engine_abi.h"
#include "timeline.h"

namespace sirtaki {
namespace {

constexpr std::array<std::string_view, 9> kCollectives{"allreduce", "allgather",       "broadcast",
                                                       "barrier",   "alltoall",        "reducescatter",
                                                       "join",      "add_process_set", "remove_process_set"};
constexpr std::array<std::string_view, 6> kReduceOps{"average", "sum", "adasum", "min", "max", "product"};
constexpr std::array<std::string_view, 15> kTypes{
    "bool",  "uint8",   "int8",     "uint16",  "int16",   "uint32",    "int32",     "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
constexpr std::array<std::string_view, 4> kBackends{"local", "shared-memory", "shared-memory+mpi", "mpi"};
constexpr std::array<std::string_view, kNumPhases> kPhases{"pack", "reduce", "unpack"};

template <size_t N>
std::string_view name_of(const std::array<std::string_view, N>& names, int64_t number) {
  return number >= 0 && static_cast<size_t>(number) < N ? names[static_cast<size_t>(number)] : "unknown";
}

void put_number(std::string* out, int64_t value) {
  std::array<char, 24> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  out->append(text.data(), end.ptr);
}

// Microseconds with the nanoseconds behind the point.
void put_time(std::string* out, int64_t ns) {
  put_number(out, ns / 1000);
  const auto rest = static_cast<int>(ns % 1000);
  const std::array<char, 4> digits{'.', static_cast<char>('0' + rest / 100),
                                   static_cast<char>('0' + rest / 10 % 10),
                                   static_cast<char>('0' + rest % 10)};
  out->append(digits.data(), digits.size());
}

void put_escaped(std::string* out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      out->append("\\u00").push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
}

void put_head(std::string* out, std::string_view phase, int32_t rank, uint32_t lane, int64_t ns) {
  out->append("{\"ph\":\"").append(phase).append("\",\"pid\":");
  put_number(out, rank);
  out->append(",\"tid\":");
  put_number(out, lane);
  out->append(",\"ts\":");
  put_time(out, ns);
}

void put_slice(std::string* out, int32_t rank, uint32_t lane, int64_t begin, int64_t end,
               std::string_view name) {
  put_head(out, "X", rank, lane, begin);
  out->append(",\"dur\":");
  put_time(out, end - begin);
  out->append(",\"name\":\"").append(name).append("\"");
}

void put_argument(std::string* out, std::string_view name, int64_t value) {
  out->append(",\"").append(name).append("\":");
  put_number(out, value);
}

}  // namespace

void Timeline::name_lane(uint32_t lane, std::string* lines) {
  if (lane < named_.size() && named_[lane]) return;
  if (lane >= named_.size()) {
    named_.resize(lane + 1);
    is_open_.resize(lane + 1);
  }
  named_[lane] = true;
  lines->append("{\"ph\":\"M\",\"pid\":");
  put_number(lines, rank_);
  lines->append(",\"tid\":");
  put_number(lines, lane);
  lines->append(",\"name\":\"thread_name\",\"args\":{\"name\":\"");
  {
    const std::lock_guard<std::mutex> lock(lanes_mutex_);
    put_escaped(lines, lanes_[lane]);
  }
  lines->append("\"}},\n");
}

void Timeline::format(const TimelineEvent& e, std::string* lines) {
  name_lane(e.lane, lines);
  switch (e.kind) {
    case TimelineEvent::Kind::kSubmitted:
      put_head(lines, "B", rank_, e.lane, e.submitted_ns);
      lines->append(",\"name\":\"negotiate\",\"args\":{\"collective\":\"")
          .append(name_of(kCollectives, e.collective))
          .append("\"");
      put_argument(lines, "bytes", static_cast<int64_t>(e.bytes));
      lines->append("}},\n");
      is_open_[e.lane] = true;
      return;
    case TimelineEvent::Kind::kDone:
      format_tensor(e, lines);
      release_lane(e.lane);
      return;
    case TimelineEvent::Kind::kFailed:
      if (is_open_[e.lane]) {
        put_head(lines, "E", rank_, e.lane, e.end_ns);
        lines->append(",\"args\":{\"failed\":true}},\n");
        is_open_[e.lane] = false;
      }
      release_lane(e.lane);
      return;
    case TimelineEvent::Kind::kBatch:
      put_slice(lines, rank_, e.lane, e.begin_ns, e.end_ns, "batch");
      lines->append(",\"args\":{\"batch\":");
      put_number(lines, static_cast<int64_t>(e.batch));
      put_argument(lines, "tensors", e.num_tensors);
      put_argument(lines, "bytes", static_cast<int64_t>(e.bytes));
      lines->append("}},\n");
      return;
  }
}

void Timeline::format_tensor(const TimelineEvent& e, std::string* lines) {
  // Ends are never before beginnings, whatever the clocks of the log's writer say.
  const int64_t decided = std::clamp(e.decided_ns, e.submitted_ns, std::max(e.submitted_ns, e.begin_ns));
  const int64_t begin = std::max(decided, e.begin_ns);
  const int64_t end = std::max(begin, e.end_ns);
  if (is_open_[e.lane]) {
    put_head(lines, "E", rank_, e.lane, decided);
    lines->append("},\n");
    is_open_[e.lane] = false;
  } else {
    put_slice(lines, rank_, e.lane, e.submitted_ns, decided, "negotiate");
    lines->append("},\n");
  }
  put_slice(lines, rank_, e.lane, decided, end, name_of(kCollectives, e.collective));
  lines->append(",\"args\":{\"backend\":\"").append(name_of(kBackends, static_cast<int64_t>(e.backend)));
  if (e.collective != SIRTAKI_BARRIER) lines->append("\",\"dtype\":\"").append(name_of(kTypes, e.dtype));
  if (e.collective == SIRTAKI_ALLREDUCE || e.collective == SIRTAKI_REDUCESCATTER)
    lines->append("\",\"op\":\"").append(name_of(kReduceOps, e.reduce_op));
  lines->append("\"");
  put_argument(lines, "bytes", static_cast<int64_t>(e.bytes));
  put_argument(lines, "tensors", e.num_tensors);
  put_argument(lines, "batch", static_cast<int64_t>(e.batch));
  put_argument(lines, "batch_tensors", e.batch_tensors);
  put_argument(lines, "chunks", e.num_chunks);
  lines->append(",\"wait_us\":");
  put_time(lines, e.wait_ns);
  lines->append("}},\n");
  put_slice(lines, rank_, e.lane, decided, begin, "queue");
  lines->append("},\n");
  int64_t at = begin;
  for (size_t p = 0; p < kNumPhases; ++p) {
    if (e.phase_ns[p] == 0) continue;
    const int64_t until = std::min(end, at + e.phase_ns[p]);
    put_slice(lines, rank_, e.lane, at, until, kPhases[p]);
    lines->append("},\n");
    at = until;
  }
}

}  // namespace sirtaki
