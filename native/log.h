// Messages of the native code on their way to Python's logging, which alone knows where they go.
//
// Any thread may log; nobody waits for Python. A Python thread (collectives/logs.py) takes the messages out.
// For what is rare: a message costs a lock and an allocation.
#ifndef SIRTAKI_LOG_H_
#define SIRTAKI_LOG_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace sirtaki {

// Python's numbers.
enum class LogLevel : int32_t { kTrace = 5, kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };

struct LogMessage {
  LogLevel level;
  std::string text;
};

class MessageLog {
 public:
  void write(LogLevel level, std::string text);
  // Waits for a message; false: close() was called and none is left.
  bool take(LogMessage* message);
  void open();
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LogMessage> messages_;
  uint64_t num_lost_ = 0;
  bool is_open_ = false;
};

// The process's one; never destroyed, for threads may log until the very end.
MessageLog& message_log();

inline void log_message(LogLevel level, std::string text) { message_log().write(level, std::move(text)); }

}  // namespace sirtaki

#endif  // SIRTAKI_LOG_H_
