#include "watchdog.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "platform.h"

namespace sirtaki {

Watchdog::Watchdog(double seconds, std::string text) {
  thread_ = start_thread("sirtaki-watchdg", [this, seconds, text = std::move(text)] {
    std::unique_lock<std::mutex> lock(mutex_);
    if (cancelled_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_cancelled_; }))
      return;
    if (write(STDERR_FILENO, text.data(), text.size()) < 0)
      _exit(1);  // nobody to tell: the code alone tells it
    _exit(1);
  });
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
