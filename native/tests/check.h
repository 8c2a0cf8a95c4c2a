// The least that the native tests need to say what failed: no test library is to be had everywhere that the
// project is built, since only pip installs what it needs.
//
// Checks may run on any thread; one that fails is printed with its place and values, is counted, and lets the
// test go on.
#ifndef SIRTAKI_TESTS_CHECK_H_
#define SIRTAKI_TESTS_CHECK_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sirtaki::testing {

struct Place {
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

void report_failure(const std::string& text, const Place& place);

template <typename T, typename = void>
struct IsRange : std::false_type {};
template <typename T>
struct IsRange<T, std::void_t<decltype(std::declval<const T&>().begin())>> : std::true_type {};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<int64_t>(value);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out << '"' << std::string_view(value) << '"';
  } else if constexpr (IsRange<T>::value) {
    out << '[';
    for (const auto& item : value) out << (out.tellp() > 1 ? ", " : "") << show(item);
    out << ']';
  } else {
    out.precision(17);
    out << value;
  }
  return out.str();
}

inline bool expect(bool holds, std::string_view what, const Place& place = {}) {
  if (!holds) report_failure("does not hold: " + std::string(what), place);
  return holds;
}

template <typename A, typename B>
bool expect_equal(const A& actual, const B& expected, const Place& place = {}) {
  if (actual == expected) return true;
  report_failure("is " + show(actual) + ", expected " + show(expected), place);
  return false;
}

inline bool expect_contains(std::string_view text, std::string_view part, const Place& place = {}) {
  if (text.find(part) != std::string_view::npos) return true;
  report_failure(show(text) + " does not contain " + show(part), place);
  return false;
}

template <typename Error, typename Body>
bool expect_throws(const Body& body, const Place& place = {}) {
  try {
    body();
  } catch (const Error&) {
    return true;
  } catch (const std::exception& other) {
    report_failure("throws something else: " + std::string(other.what()), place);
    return false;
  }
  report_failure("throws nothing", place);
  return false;
}

// A list of tests. Each file of tests adds its own; see main.cc.
class Suite {
 public:
  void add(std::string name, std::function<void()> body) {
    tests_.push_back({std::move(name), std::move(body)});
  }
  // Runs those whose names contain `filter` and prints "N passed, N failed". Returns the exit code.
  int run(std::string_view filter) const;

 private:
  struct Test {
    std::string name;
    std::function<void()> body;
  };
  std::vector<Test> tests_;
};

}  // namespace sirtaki::testing

#endif  // SIRTAKI_TESTS_CHECK_H_
