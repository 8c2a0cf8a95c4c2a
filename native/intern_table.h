// Numbers for byte strings: the names and signatures that ranks and sequencer speak of by number.
//
// Numbers start at 1 and are never given twice. Entries carry the time of their last use, in steps of the
// caller's, so that the ones unused for longest can be dropped.
#ifndef SIRTAKI_INTERN_TABLE_H_
#define SIRTAKI_INTERN_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sirtaki {

template <typename Facts>
class InternTable {
 public:
  struct Entry {
    std::string bytes;
    Facts facts;
    uint64_t last_use = 0;
    bool retired = false;  // the ranks have been told to forget the number
  };

  bool contains(std::string_view bytes) const { return numbers_.count(std::string(bytes)) != 0; }
  size_t size() const { return entries_.size(); }

  // `bytes` must be new.
  uint32_t add(std::string_view bytes, Facts facts, uint64_t now) {
    if (next_ == std::numeric_limits<uint32_t>::max())
      throw std::runtime_error("the job has run out of names");
    const uint32_t number = next_++;
    entries_.emplace(number, Entry{std::string(bytes), std::move(facts), now});
    numbers_.emplace(bytes, number);
    return number;
  }

  // 0: unknown.
  uint32_t number_of(std::string_view bytes) const {
    const auto it = numbers_.find(std::string(bytes));
    return it == numbers_.end() ? 0 : it->second;
  }

  // nullptr: it has been dropped.
  Entry* find(uint32_t number) {
    const auto it = entries_.find(number);
    return it == entries_.end() ? nullptr : &it->second;
  }
  const Entry* find(uint32_t number) const { return const_cast<InternTable*>(this)->find(number); }
  bool was_given(uint32_t number) const { return number > 0 && number < next_; }

  void drop(uint32_t number) {
    const auto it = entries_.find(number);
    numbers_.erase(it->second.bytes);
    entries_.erase(it);
  }

  // The numbers of the `count` entries unused for longest, oldest first.
  std::vector<uint32_t> oldest(size_t count) const {
    std::vector<std::pair<uint64_t, uint32_t>> all;
    all.reserve(entries_.size());
    for (const auto& [number, entry] : entries_) all.emplace_back(entry.last_use, number);
    count = std::min(count, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end());
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < count; ++i) numbers.push_back(all[i].second);
    return numbers;
  }

 private:
  uint32_t next_ = 1;
  std::unordered_map<uint32_t, Entry> entries_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_INTERN_TABLE_H_
