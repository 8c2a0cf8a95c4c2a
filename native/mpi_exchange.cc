#include "mpi_exchange.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <string>

#include "platform.h"

namespace sirtaki {
namespace {

constexpr int kTag = 1;
constexpr int kYields = 16;
constexpr int64_t kFirstSleepNs = 5 * 1000;
// Long enough to leave the core to others, short against the transfer of a chunk between hosts.
constexpr int64_t kLongestSleepNs = 200 * 1000;
// Sleeps without progress after which a wait is long, and so again: about 200 ms.
constexpr int kSleepsPerLongWait = 750;

constexpr int kWaitsForRelay = 200;
constexpr int64_t kWaitForRelayNs = 10 * 1000 * 1000;

void sleep_ns(int64_t ns) {
  const timespec t{0, static_cast<long>(ns)};
  nanosleep(&t, nullptr);
}

}  // namespace

void MpiExchange::check(int code, const char* what, int32_t rank) {
  if (code == 0) return;
  // Mostly MPI has met a rank that died, of which the relay hears too and knows more: let it speak first.
  for (int i = 0; i < kWaitsForRelay && !segment_->failed(); ++i) sleep_ns(kWaitForRelayNs);
  if (segment_->failed()) return;
  segment_->post_failure(rank, std::string(what) + " rank " + std::to_string(rank) +
                                   " failed inside MPI with error code " + std::to_string(code) +
                                   ". The connection between the hosts or the rank itself may be gone.");
}

void MpiExchange::send(int32_t rank, const void* buffer, size_t bytes) {
  if (bytes == 0) return;
  requests_.push_back({rank, {}});
  check(table_.isend(buffer, static_cast<int>(bytes), table_.byte_type, rank, kTag, table_.comm,
                     requests_.back().bytes.data()),
        "sending to", rank);
}

void MpiExchange::receive(int32_t rank, void* buffer, size_t bytes) {
  if (bytes == 0) return;
  requests_.push_back({rank, {}});
  check(table_.irecv(buffer, static_cast<int>(bytes), table_.byte_type, rank, kTag, table_.comm,
                     requests_.back().bytes.data()),
        "receiving from", rank);
}

bool MpiExchange::finish() {
  if (requests_.empty()) return !segment_->failed();
  // Several may be waited for: the one that was posted first stands for them.
  const WaitClock clock(metrics_, requests_.front().rank);
  int64_t spin_end = 0;
  int yields = 0;
  int sleeps = 0;
  int64_t nap = kFirstSleepNs;
  while (!requests_.empty()) {
    if (segment_->failed()) {
      requests_.clear();
      return false;
    }
    const size_t before = requests_.size();
    alignas(16) std::array<char, 128> status;
    const auto is_done = [&](Request& request) {
      int done = 0;
      check(table_.test(request.bytes.data(), &done, status.data()), "exchanging data with", request.rank);
      return done != 0;
    };
    requests_.erase(std::remove_if(requests_.begin(), requests_.end(), is_done), requests_.end());
    if (requests_.size() < before) {
      spin_end = 0;
      yields = 0;
      sleeps = 0;
      nap = kFirstSleepNs;
      continue;
    }
    if (spin_ns_ > 0 && spin_end == 0) spin_end = now_ns() + spin_ns_;
    if (spin_end != 0 && now_ns() < spin_end) {
      cpu_relax();
    } else if (yields < kYields) {
      ++yields;
      sched_yield();
    } else {
      sleep_ns(nap);
      nap = std::min(nap * 2, kLongestSleepNs);
      if (++sleeps % kSleepsPerLongWait == 0) long_wait_->happens();
    }
  }
  return !segment_->failed();
}

}  // namespace sirtaki
