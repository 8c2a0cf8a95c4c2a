// The sequencer: decides, on global rank 0, what goes into the job's one log. No I/O, no threads, no clock.
//
// In come the ranks' records, out come log entries, the same for all ranks and in one order, so that no two
// ranks ever wait for each other crosswise. What is rare (a name or signature met for the first time, ranks
// that disagree) is not decided here but handed out as an event for the rules in collectives/negotiation.py,
// whose decision comes back through assign_name, assign_signature and post_error.
//
// Guarantees:
//   * A tensor is executed once all members of its set have submitted it with the same signature.
//   * If the signatures differ, it is executed on none; one Disagreement event holds what each rank sent.
//   * A tensor that needs a rank that has left ends with an error on each rank that submitted it.
#ifndef SIRTAKI_SEQUENCER_H_
#define SIRTAKI_SEQUENCER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fusion.h"
#include "messages.h"

namespace sirtaki {

struct LogEntry {
  Record type;
  std::string payload;
};

struct RareEvent {
  enum class Kind { kNewName, kNewSignature, kDisagreement };
  Kind kind;
  int32_t rank = 0;                                         // who asked, for a new name or signature
  std::string bytes;                                        // the name or signature
  Key key = 0;                                              // for a disagreement
  std::vector<std::pair<int32_t, std::string>> signatures;  // by global rank, for a disagreement
};

// A tensor that some of its ranks have submitted and others have not.
struct Incomplete {
  uint64_t serial;  // tells one wait for a tensor from a later one
  std::string name;
  std::vector<int32_t> submitted;
  std::vector<int32_t> missing;
};

class Sequencer {
 public:
  Sequencer(int32_t size, int64_t fusion_threshold);

  // A record from `rank`. Throws std::runtime_error if it breaks the protocol.
  void handle(int32_t rank, Record type, std::string_view payload);

  // Decisions on rare events.
  void assign_name(std::string_view scoped_name);
  void assign_signature(std::string_view signature);
  void post_error(Key key, int32_t rank, int32_t code, std::string_view text);

  // Turns what is ready into EXECUTE entries.
  void plan();
  LogEntry take_entry();
  bool has_rare_event() const { return !rare_.empty(); }
  RareEvent take_rare_event();

  // What waits for ranks, oldest first; which of them wait too long is for a clock to say.
  std::vector<Incomplete> incomplete() const;

  bool all_left() const { return num_left_ == size_; }
  bool has_entry() const { return !log_.empty(); }
  // The name behind a key, as a person reads it.
  std::string describe(Key key) const;

 private:
  struct Signed {
    std::string bytes;
    std::string fusion_class;
    int64_t num_bytes;
    bool gathers;  // ranks' row counts belong to the EXECUTE entry
  };
  struct Pending {
    uint64_t serial = 0;
    uint32_t process_set = 0;
    int32_t count = 0;
    bool disagrees = false;
    uint32_t first_signature = 0;
    std::vector<uint32_t> signatures;  // by member, 0: not submitted
    std::vector<int64_t> rows;         // by member
  };

  void submit(int32_t rank, const SubmitRecord& record);
  void leave(int32_t rank);
  void complete(Key key, Pending* pending);
  void fail_for_left(Key key, const Pending& pending);
  const std::vector<int32_t>& members(uint32_t process_set) const;
  uint32_t set_of(Key key) const;
  void execute(const std::vector<size_t>& batch);

  int32_t size_;
  int64_t fusion_threshold_;
  std::vector<std::vector<int32_t>> sets_;  // members by process set, in rank order
  std::vector<bool> left_;
  int32_t num_left_ = 0;
  uint64_t sequence_ = 0;
  uint64_t serial_ = 0;

  struct Name {
    std::string text;
    uint32_t process_set;
  };
  std::vector<Name> names_;         // by number, from 1
  std::vector<Signed> signatures_;  // by number, from 1
  std::unordered_map<std::string, uint32_t> name_numbers_;
  std::unordered_map<std::string, uint32_t> signature_numbers_;

  std::unordered_map<Key, Pending> pending_;
  struct Ready {
    Key key;
    uint32_t signature;
    uint32_t process_set;
    std::vector<int64_t> rows;
  };
  std::vector<Ready> ready_;
  std::deque<LogEntry> log_;
  std::deque<RareEvent> rare_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_SEQUENCER_H_
