#include "log.h"

#include <utility>

namespace sirtaki {
namespace {

// If nobody takes them out (a handler that hangs, say), memory must not fill up.
constexpr size_t kMostMessages = 1000;

}  // namespace

void MessageLog::write(LogLevel level, std::string text) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (messages_.size() >= kMostMessages) {
      ++num_lost_;
      return;
    }
    messages_.push_back({level, std::move(text)});
  }
  changed_.notify_one();
}

bool MessageLog::take(LogMessage* message) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !messages_.empty() || !is_open_; });
  if (messages_.empty()) return false;
  *message = std::move(messages_.front());
  messages_.pop_front();
  if (num_lost_ > 0) {
    messages_.push_back(
        {LogLevel::kWarning, std::to_string(num_lost_) + " messages were lost: too many waited"});
    num_lost_ = 0;
  }
  return true;
}

void MessageLog::open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_open_ = true;
}

void MessageLog::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = false;
  }
  changed_.notify_all();
}

MessageLog& message_log() {
  static auto* log = new MessageLog();
  return *log;
}

}  // namespace sirtaki
