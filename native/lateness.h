// Whom a tensor has waited for: the ranks' submissions as the sequencer meets them, without a clock of its
// own.
//
// The driver tells the time once for each gulp of records (set_time). Records of one gulp count as
// simultaneous: while the driver was busy elsewhere, nobody waited for the one that came last among them.
#ifndef SIRTAKI_LATENESS_H_
#define SIRTAKI_LATENESS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sirtaki {

constexpr int32_t kNobody = -1;

// The submissions of one tensor so far.
struct Arrivals {
  int64_t latest_ns = 0;
  int64_t before_ns = 0;  // of the gulp before the latest
  int32_t latest_rank = kNobody;
};

// The rank for which the others waited last, and how long for it alone.
struct Last {
  int32_t rank = kNobody;
  int64_t waited_ns = 0;
};

class Lateness {
 public:
  explicit Lateness(int32_t size) : blamed_until_(static_cast<size_t>(size)) {}

  void set_time(int64_t now_ns) { now_ns_ = now_ns; }
  int64_t now_ns() const { return now_ns_; }

  void arrive(int32_t rank, Arrivals* arrivals) const {
    if (arrivals->latest_rank == kNobody) {
      arrivals->before_ns = now_ns_;
    } else if (arrivals->latest_ns != now_ns_) {
      arrivals->before_ns = arrivals->latest_ns;
    }
    arrivals->latest_ns = now_ns_;
    arrivals->latest_rank = rank;
  }

  // Moments in which several tensors wait for one rank count once, so that a rank's sum is the time that it
  // has cost, whatever the number of its tensors.
  Last complete(const Arrivals& arrivals) {
    if (arrivals.before_ns == arrivals.latest_ns) return {};
    int64_t& until = blamed_until_[static_cast<size_t>(arrivals.latest_rank)];
    const int64_t from = std::max(until, arrivals.before_ns);
    until = std::max(until, arrivals.latest_ns);
    return {arrivals.latest_rank, std::max<int64_t>(0, arrivals.latest_ns - from)};
  }

 private:
  int64_t now_ns_ = 0;
  std::vector<int64_t> blamed_until_;  // by rank
};

}  // namespace sirtaki

#endif  // SIRTAKI_LATENESS_H_
