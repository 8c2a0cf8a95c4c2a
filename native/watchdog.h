// Ends the process with a message if something takes too long that holds Python's GIL, such as MPI_Init
// waiting for a rank that never comes. No Python thread could notice.
#ifndef SIRTAKI_WATCHDOG_H_
#define SIRTAKI_WATCHDOG_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace sirtaki {

class Watchdog {
 public:
  // After `seconds` without cancel(): writes `text` to standard error and exits with code 1 at once.
  Watchdog(double seconds, std::string text);
  ~Watchdog() { cancel(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void cancel();

 private:
  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
  std::thread thread_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_WATCHDOG_H_
