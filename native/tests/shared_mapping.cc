// All mappings of one memfd in this process become one and the same.
//
// The simulated ranks of a test job live in one process. Each maps its host's segment as a real rank does; at
// addresses of its own the thread sanitizer could not tell that two ranks touch the same byte. The linker
// sends the engine's mmap and munmap here (-Wl,--wrap=mmap,--wrap=munmap), so the engine needs no hook.
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

extern "C" {
void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t bytes);
}

namespace {

struct Shared {
  void* address;
  size_t bytes;
  int users;
};

std::mutex mutex;
std::map<std::pair<dev_t, ino_t>, Shared>& mappings() {
  static std::map<std::pair<dev_t, ino_t>, Shared> all;
  return all;
}

}  // namespace

extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat file{};
  if (fd < 0 || (flags & MAP_SHARED) == 0 || fstat(fd, &file) != 0) {
    return __real_mmap(address, bytes, protection, flags, fd, offset);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  auto [it, is_new] = mappings().try_emplace({file.st_dev, file.st_ino}, Shared{nullptr, bytes, 0});
  Shared& shared = it->second;
  if (is_new) shared.address = __real_mmap(address, bytes, protection, flags, fd, offset);
  if (shared.address == MAP_FAILED) {
    mappings().erase(it);
    return MAP_FAILED;
  }
  ++shared.users;
  return shared.address;
}

extern "C" int __wrap_munmap(void* address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto it = mappings().begin(); it != mappings().end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.users > 0) return 0;
    mappings().erase(it);
    break;
  }
  return __real_munmap(address, bytes);
}
