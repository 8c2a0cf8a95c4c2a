// A buffer of text for the timeline's writer, made to be fast: it formats some 900 characters per tensor, and
// its instructions are the timeline's cost (benchmarks/timeline_cost.py).
//
// The caller makes room first, and then puts text and numbers without further checks. Pieces of a known
// largest size are copied whole, which takes a few vector instructions, and count with their own.
#ifndef SIRTAKI_TIMELINE_TEXT_H_
#define SIRTAKI_TIMELINE_TEXT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

namespace sirtaki {

// A text of at most `kMost` characters.
struct ShortText {
  static constexpr size_t kMost = 48;

  constexpr ShortText() = default;
  constexpr ShortText(std::string_view text) : size(text.size()) {  // NOLINT: tables are written as texts
    for (size_t i = 0; i < text.size(); ++i) characters[i] = text[i];
  }

  std::array<char, kMost> characters{};
  size_t size = 0;
};

// "00", "01", ... "99", one behind the other.
constexpr std::array<char, 200> make_digit_pairs() {
  std::array<char, 200> pairs{};
  for (size_t i = 0; i < 100; ++i) {
    pairs[2 * i] = static_cast<char>('0' + i / 10);
    pairs[2 * i + 1] = static_cast<char>('0' + i % 10);
  }
  return pairs;
}
inline constexpr std::array<char, 200> kDigitPairs = make_digit_pairs();

class TimelineText {
 public:
  TimelineText() { grow(size_t{1} << 16); }

  // Makes room for so many characters, and for what is copied beyond the end of short texts.
  void reserve(size_t size) {
    if (capacity_ - size_ < size + ShortText::kMost) grow(2 * capacity_ + size);
  }

  template <size_t N>
  void put(const char (&literal)[N]) {
    std::memcpy(end(), literal, N - 1);
    size_ += N - 1;
  }
  void put(const ShortText& text) {
    std::memcpy(end(), text.characters.data(), ShortText::kMost);
    size_ += text.size;
  }
  void put_text(std::string_view text) {
    std::memcpy(end(), text.data(), text.size());
    size_ += text.size();
  }

  void put_number(uint64_t value) {
    std::array<char, 2 * kMostDigits> digits;
    char* const last = digits.data() + kMostDigits;
    char* first = last;
    while (value >= 100) {
      first -= 2;
      std::memcpy(first, kDigitPairs.data() + 2 * (value % 100), 2);
      value /= 100;
    }
    first -= 2;
    std::memcpy(first, kDigitPairs.data() + 2 * value, 2);
    if (value < 10) ++first;
    std::memcpy(end(), first, kMostDigits);
    size_ += static_cast<size_t>(last - first);
  }

  // Microseconds, with the nanoseconds behind the point; times before zero, which there are not, are zero.
  void put_time(int64_t ns) {
    const uint64_t time = ns < 0 ? 0 : static_cast<uint64_t>(ns);
    put_number(time / 1000);
    const auto rest = static_cast<uint32_t>(time % 1000);
    char* at = end();
    at[0] = '.';
    at[1] = static_cast<char>('0' + rest / 100);
    std::memcpy(at + 2, kDigitPairs.data() + size_t{2} * (rest % 100), 2);
    size_ += 4;
  }

  // The same for moments, which come one soon after the other: the digits of the second are kept.
  void put_moment(int64_t ns) {
    const int64_t second = ns / 1'000'000'000;
    if (second <= 0) return put_time(ns);
    if (second != second_) {
      second_ = second;
      const size_t begin = size_;
      put_number(static_cast<uint64_t>(second));
      second_text_ = ShortText(view().substr(begin));
      size_ = begin;
    }
    std::memcpy(end(), second_text_.characters.data(), kMostDigits);
    size_ += second_text_.size;
    const auto rest = static_cast<uint32_t>(ns % 1'000'000'000);
    const uint32_t us = rest / 1000;
    const uint32_t below = rest % 1000;
    char* at = end();
    std::memcpy(at, kDigitPairs.data() + size_t{2} * (us / 10'000), 2);
    std::memcpy(at + 2, kDigitPairs.data() + size_t{2} * (us / 100 % 100), 2);
    std::memcpy(at + 4, kDigitPairs.data() + size_t{2} * (us % 100), 2);
    at[6] = '.';
    at[7] = static_cast<char>('0' + below / 100);
    std::memcpy(at + 8, kDigitPairs.data() + size_t{2} * (below % 100), 2);
    size_ += 10;
  }

  // As in a string of JSON. Takes up to six times the size.
  void put_escaped(std::string_view text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        put("\\");
      } else if (byte < 0x20 || byte == 0x7f) {
        put("\\u00");
        *end() = kHex[byte >> 4];
        ++size_;
        *end() = kHex[byte & 15];
        ++size_;
        continue;
      }
      *end() = c;
      ++size_;
    }
  }

  void clear() { size_ = 0; }
  void remove_last(size_t size) { size_ -= size; }
  void replace_first(std::string_view text) { std::memcpy(characters_.get(), text.data(), text.size()); }
  std::string_view view() const { return {characters_.get(), size_}; }

 private:
  static constexpr size_t kMostDigits = 20;  // of 64 bits

  char* end() { return characters_.get() + size_; }

  // Its memory is not cleared: that would cost more than a thousand events.
  void grow(size_t capacity) {
    std::unique_ptr<char[]> larger(new char[capacity]);
    if (size_ > 0) std::memcpy(larger.get(), characters_.get(), size_);
    characters_ = std::move(larger);
    capacity_ = capacity;
  }

  int64_t second_ = -1;
  ShortText second_text_;
  std::unique_ptr<char[]> characters_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

}  // namespace sirtaki

#endif  // SIRTAKI_TIMELINE_TEXT_H_
