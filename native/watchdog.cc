#include "watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace sirtaki {

Watchdog::Watchdog(double seconds, std::string text) {
  // Signals are the application's: its handlers must not run on this thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, seconds, text = std::move(text)] {
    std::unique_lock<std::mutex> lock(mutex_);
    if (cancelled_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_cancelled_; }))
      return;
    if (write(STDERR_FILENO, text.data(), text.size()) < 0)
      _exit(1);  // nobody to tell: the code alone tells it
    _exit(1);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Watchdog::cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
  }
  cancelled_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace sirtaki
