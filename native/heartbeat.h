// When to give and when to expect signs of life: the rules alone, without a clock and without I/O.
//
// A process that is stopped (SIGSTOP, a debugger) or whose host hangs keeps its connections; all that tells
// is that its threads no longer run. So every relay thread gives a sign of life eight times per limit, and
// looks at the same moments for its peers'.
//
// An observer that was itself not running has missed signs of life, so it must not count that time: of the
// time between two looks no more counts than two periods. When a whole job is stopped and continued, or its
// host suspended, nobody is accused.
#ifndef SIRTAKI_HEARTBEAT_H_
#define SIRTAKI_HEARTBEAT_H_

#include <algorithm>
#include <cstdint>

namespace sirtaki {

class Heartbeat {
 public:
  // What an observer remembers of a peer.
  struct Pulse {
    uint64_t count = 0;  // signs of life, as last seen
    int64_t silent_ns = 0;
  };

  // `limit_ns`: how long a peer may be silent; 0: for ever.
  explicit Heartbeat(int64_t limit_ns)
      : limit_ns_(limit_ns), period_ns_(std::max(limit_ns / kBeatsPerLimit, kShortestPeriodNs)) {}

  int64_t limit_ns() const { return limit_ns_; }
  // How long there is nothing to do; negative: for ever.
  int64_t idle_ns(int64_t now_ns) const {
    return limit_ns_ == 0 ? -1 : std::max<int64_t>(next_ns_ - now_ns, 0);
  }
  // Whether it is time to give a sign of life and to look for those of others. Begins a new period then.
  bool is_due(int64_t now_ns) {
    if (limit_ns_ == 0 || now_ns < next_ns_) return false;
    const int64_t since = last_ns_ == 0 ? 0 : now_ns - last_ns_;
    counted_ns_ = std::min(since, 2 * period_ns_);
    last_ns_ = now_ns;
    next_ns_ = now_ns + period_ns_;
    return true;
  }
  // Asked once per period and peer, with the number of signs of life so far: whether it is unresponsive.
  bool is_silent(Pulse* pulse, uint64_t count) const {
    if (count != pulse->count) {
      *pulse = {count, 0};
      return false;
    }
    pulse->silent_ns += counted_ns_;
    // Before its first sign of life a peer may still be starting.
    const bool has_begun = count != 0;
    return pulse->silent_ns >= (has_begun ? limit_ns_ : std::max(limit_ns_, kStartNs));
  }

 private:
  static constexpr int64_t kBeatsPerLimit = 8;
  static constexpr int64_t kShortestPeriodNs = int64_t{5} * 1000 * 1000;
  static constexpr int64_t kStartNs = int64_t{60} * 1000 * 1000 * 1000;

  int64_t limit_ns_;
  int64_t period_ns_;
  int64_t last_ns_ = 0;
  int64_t next_ns_ = 0;
  int64_t counted_ns_ = 0;
};

}  // namespace sirtaki

#endif  // SIRTAKI_HEARTBEAT_H_
