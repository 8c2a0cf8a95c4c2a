#include "platform.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sirtaki {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

std::thread start_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

Wake futex_wait(std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns, Scope scope) {
  timespec timeout;
  timespec* limit = nullptr;
  if (timeout_ns >= 0) {
    timeout.tv_sec = timeout_ns / 1000000000;
    timeout.tv_nsec = timeout_ns % 1000000000;
    limit = &timeout;
  }
  const int op = scope == Scope::kShared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  if (syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, expected, limit, nullptr, 0) == 0) {
    return Wake::kWoken;
  }
  if (errno == ETIMEDOUT) return Wake::kTimedOut;
  if (errno == EINTR) return Wake::kSignal;
  return Wake::kWoken;
}

void futex_wake_all(std::atomic<uint32_t>* word, Scope scope) {
  const int op = scope == Scope::kShared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, INT_MAX, nullptr, nullptr, 0);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() { close(); }

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

SharedMapping::SharedMapping(int fd, size_t bytes) : bytes_(bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "cannot map the shared segment of this host");
  }
  data_ = static_cast<char*>(address);
  madvise(data_, bytes_, MADV_DONTFORK);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

#if defined(__x86_64__)

DefaultFloatMode::DefaultFloatMode() : saved_(_mm_getcsr()) {
  constexpr unsigned kPowerOnDefault = 0x1f80;  // exceptions masked, nearest, neither FTZ nor DAZ
  _mm_setcsr(kPowerOnDefault);
}

DefaultFloatMode::~DefaultFloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }

#elif defined(__aarch64__)

DefaultFloatMode::DefaultFloatMode() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}

DefaultFloatMode::~DefaultFloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

#else
#error "Sirtaki supports Linux on x86-64 and aarch64"
#endif

void eventfd_signal(int fd) {
  const uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void eventfd_clear(int fd) {
  uint64_t count;
  while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace sirtaki
