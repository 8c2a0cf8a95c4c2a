#include "check.h"

#include <atomic>
#include <cstdio>

#include "../platform.h"
#include "../watchdog.h"

namespace sirtaki::testing {
namespace {

// Far above what the slowest test takes under a sanitizer on a busy machine.
constexpr double kHangsAfterSeconds = 120;

std::atomic<int> failures{0};

}  // namespace

void report_failure(const std::string& text, const Place& place) {
  failures.fetch_add(1);
  const std::string line = std::string(place.file) + ":" + std::to_string(place.line) + ": " + text + "\n";
  std::fputs(line.c_str(), stderr);
}

int Suite::run(std::string_view filter) const {
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests_) {
    if (test.name.find(filter) == std::string::npos) continue;
    std::printf("%s ...", test.name.c_str());
    std::fflush(stdout);
    const int before = failures.load();
    const int64_t start = now_ns();
    {
      Watchdog watchdog(kHangsAfterSeconds, "the test '" + test.name + "' hangs\n");
      try {
        test.body();
      } catch (const std::exception& error) {
        report_failure("'" + test.name + "' ends with an exception: " + error.what(), {});
      }
    }
    const bool ok = failures.load() == before;
    std::printf(" %s (%.2f s)\n", ok ? "ok" : "FAILED", static_cast<double>(now_ns() - start) * 1e-9);
    ++(ok ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return passed > 0 && failed == 0 ? 0 : 1;
}

}  // namespace sirtaki::testing
