// The calls into the operating system and the processor that the engine needs, each wrapped once.
#ifndef SIRTAKI_PLATFORM_H_
#define SIRTAKI_PLATFORM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace sirtaki {

// Monotonic time in nanoseconds.
int64_t now_ns();

// Whether threads of one process or of several sleep on a word.
enum class Scope { kProcess, kShared };

enum class Wake { kWoken, kTimedOut, kSignal };

// Sleeps while `*word == expected`, at most `timeout_ns` (negative: for ever). Like every futex it may wake
// without a reason, so callers check their condition again. kSignal: a signal handler ran on this thread.
Wake futex_wait(std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns, Scope scope);
void futex_wake_all(std::atomic<uint32_t>* word, Scope scope);

// Starts a thread on which no signal is handled: they are the application's. `name`: at most 15 characters.
std::thread start_thread(const char* name, std::function<void()> body);

// Tells the processor that this thread is spinning.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_ = -1;
};

// Owns a shared mapping of a whole file, kept from forked children: a child that writes into its parent's
// shared memory would corrupt the job.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Throws std::system_error.
  SharedMapping(int fd, size_t bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// While it lives, this thread computes with IEEE defaults: round to nearest, denormals kept. TensorFlow's
// threads may flush denormals to zero; the engine runs on whichever thread drives it and must give the same
// bits on all of them.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  uint64_t saved_;
};

// Writes to or clears an eventfd; a full counter and an empty one are both fine.
void eventfd_signal(int fd);
void eventfd_clear(int fd);

}  // namespace sirtaki

#endif  // SIRTAKI_PLATFORM_H_
