// The sequencer: decides, on global rank 0, what goes into the job's one log. No I/O, no threads, no clock.
//
// In come the ranks' records, out come log entries, the same for all ranks and in one order, so that no two
// ranks ever wait for each other crosswise. What is rare (a name or signature met for the first time, ranks
// that disagree) is not decided here but handed out as an event for the rules in collectives/negotiation.py,
// whose decision comes back through assign_name, assign_signature and refuse.
//
// Guarantees:
//   * A tensor is executed once all members of its set have submitted it with the same signature; members
//     that have joined and have not submitted it are left out, where the operation allows that.
//   * If the signatures differ, it is executed on none; one Disagreement event holds what each rank sent.
//   * A tensor that needs a rank that has left ends with an error on each rank that submitted it.
//   * At most about `capacity` names and as many signatures are remembered: see retire().
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
#include "intern_table.h"
#include "lateness.h"
#include "messages.h"
#include "signature.h"

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
  Sequencer(int32_t size, int64_t fusion_threshold, size_t capacity);

  // A record from `rank`. Throws std::runtime_error if it breaks the protocol.
  void handle(int32_t rank, Record type, std::string_view payload);
  // The time of the records that follow, for who was late; see lateness.h.
  void set_time(int64_t now_ns) { lateness_.set_time(now_ns); }

  // Decisions on rare events.
  void assign_name(std::string_view scoped_name);
  void assign_signature(std::string_view signature);
  // The decision on a Disagreement event: the text goes to all ranks.
  void refuse(Key key, int32_t code, std::string_view text);

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
  struct NameFacts {
    std::string text;
    uint32_t process_set = 0;
  };
  struct SignatureFacts {
    Signature signature;
    std::string fusion_class;
  };
  struct Pending {
    uint64_t serial = 0;
    uint32_t process_set = 0;
    int32_t count = 0;
    bool disagrees = false;
    uint32_t first_signature = 0;
    std::vector<uint32_t> signatures;            // by member, 0: not submitted
    std::vector<std::vector<int64_t>> payloads;  // by member; empty if the signature has none
    Arrivals arrivals;
  };
  struct Ready {
    Key key;
    uint32_t signature;
    uint32_t process_set;
    std::vector<int64_t> payloads;  // of all members
    std::vector<int32_t> absent;
    Last last;
  };
  using PendingMap = std::unordered_map<Key, Pending>;

  void post_error(Key key, int32_t rank, int32_t code, std::string_view text);
  void submit(int32_t rank, std::string_view payload);
  void join(int32_t rank);
  void end_join_when_due();
  void leave(int32_t rank);
  // Whether all members have submitted or joined.
  bool is_complete(const Pending& pending, const std::vector<int32_t>& ranks) const;
  void complete(Key key, Pending* pending);
  void fail_for_left(Key key, const Pending& pending);
  void fail_for_joined(Key key, const Pending& pending, const char* why);
  void post_to_submitters(Key key, const Pending& pending, int32_t code, const std::string& text);
  // nullptr: the set has been removed.
  const std::vector<int32_t>* members(uint32_t process_set) const;
  void execute(const std::vector<size_t>& batch);
  // What the request does to the sets; returns the numbers that the entry tells the ranks.
  std::vector<int64_t> change_sets(const Signature& signature);
  // Whether the asking rank will meet, or has just been given, the number of these bytes.
  template <typename Facts>
  bool is_known(InternTable<Facts>* table, Record assign, std::string_view bytes);
  void retire();
  void forgotten_by(int32_t rank);
  void drop_retired();

  int32_t size_;
  int64_t fusion_threshold_;
  size_t capacity_;
  std::unordered_map<uint32_t, std::vector<int32_t>> sets_;  // members by process set, in rank order
  uint32_t next_set_ = 1;                                    // numbers are never used again
  std::vector<bool> left_;
  int32_t num_left_ = 0;
  std::vector<bool> joined_;
  int32_t num_joined_ = 0;
  int32_t last_joined_ = 0;
  uint64_t sequence_ = 0;
  uint64_t serial_ = 0;
  int32_t num_undecided_ = 0;  // disagreements that refuse() has not ended yet

  InternTable<NameFacts> names_;
  InternTable<SignatureFacts> signatures_;
  std::vector<uint32_t> retired_names_;  // of the round that is on
  std::vector<uint32_t> retired_signatures_;
  std::vector<bool> has_forgotten_;
  int32_t num_to_forget_ = 0;  // ranks that have not confirmed the round yet; 0: none is on
  PendingMap pending_;
  std::vector<Ready> ready_;
  Lateness lateness_{size_};
  std::deque<LogEntry> log_;
  std::deque<RareEvent> rare_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_SEQUENCER_H_
