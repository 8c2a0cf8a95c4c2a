// The records that travel in the control plane, and the bytes they are made of.
//
// Ranks send records *up* to the sequencer (global rank 0) and read *log* entries that come down. Both have
// the same frame, in shared memory and on the wire between hosts: a type and a payload. All hosts of a job
// run the same version on little-endian machines, which `init` has checked.
#ifndef SIRTAKI_MESSAGES_H_
#define SIRTAKI_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace sirtaki {

enum class Record : uint32_t {
  // Up: from a rank to the sequencer.
  kSubmit = 1,           // SubmitRecord, i64 payload[num_payloads]
  kInternName = 2,       // bytes of a name: asks for a number
  kInternSignature = 3,  // bytes of a signature: asks for a number
  kLeave = 4,            // empty: this rank shuts down
  kJoin = 5,             // empty: this rank has no more to give until all have joined
  kForgotten = 6,        // empty: this rank has read kForgetMark
  // Down: the log.
  kAssignName = 16,       // u32 number, bytes
  kAssignSignature = 17,  // u32 number, bytes
  kExecute = 18,  // ExecuteHeader, ExecuteItem[num_items], i64 payload[num_payloads], i32 absent[num_absent]
  kError = 19,    // ErrorHeader, text
  kLeft = 20,     // i32 rank
  kJoined = 21,   // i32 rank: all have joined, this one last
  kForgetName = 22,       // u32 number, bytes; see Sequencer::retire
  kForgetSignature = 23,  // u32 number, bytes
  kForgetMark = 24,       // empty: asks for kForgotten
  // Between hosts, in both directions.
  kFailure = 32,    // i32 sirtaki_error, text; the frame's rank is the one to blame
  kHeartbeat = 33,  // empty: the sender lives
};

// Which tensor a submission is about: a named one by the number of its name, an unnamed one by its place
// among the unnamed calls of its process set. Zero is no key.
using Key = uint64_t;
constexpr Key kUnnamedBit = Key{1} << 63;
constexpr int kUnnamedSetShift = 40;
inline Key unnamed_key(uint32_t process_set, uint64_t occurrence) {
  const Key occurrence_mask = (Key{1} << kUnnamedSetShift) - 1;
  return kUnnamedBit | (Key{process_set} << kUnnamedSetShift) | (occurrence & occurrence_mask);
}
// The join of a rank is no tensor, but ends like one.
constexpr Key kJoinKey = kUnnamedBit - 1;
inline bool is_unnamed(Key key) { return (key & kUnnamedBit) != 0; }
inline uint32_t unnamed_set(Key key) {
  return static_cast<uint32_t>((key & ~kUnnamedBit) >> kUnnamedSetShift);
}
inline uint64_t unnamed_occurrence(Key key) { return key & ((Key{1} << kUnnamedSetShift) - 1); }

struct SubmitRecord {
  Key key;
  uint32_t signature;
  // What may differ between ranks: per tensor of an allgather its rows, the splits of an alltoall.
  uint32_t num_payloads;
};

struct ExecuteHeader {
  uint64_t sequence;  // counts EXECUTE entries of the whole job from 1
  uint32_t process_set;
  uint32_t num_items;
  uint32_t num_payloads;  // 0; or, with one item only, all members' payloads in rank order, or a result
  uint32_t num_absent;    // members that have joined and take no part
  int64_t decided_ns;     // monotonic time on this host at which it entered the log
};

// Clocks differ between hosts: the relay that brings an EXECUTE entry to another host puts in that host's
// time.
inline void stamp_execute(std::string* payload, int64_t now_ns) {
  if (payload->size() < sizeof(ExecuteHeader)) return;
  std::memcpy(payload->data() + offsetof(ExecuteHeader, decided_ns), &now_ns, sizeof now_ns);
}

struct ExecuteItem {
  Key key;
  uint32_t signature;
  int32_t last_rank;  // for whom the others have waited last, and how long; see lateness.h
  int64_t waited_ns;
};

constexpr int32_t kEveryRank = -1;

struct ErrorHeader {
  Key key;
  int32_t rank;  // whom it is for, or kEveryRank
  int32_t code;  // sirtaki_error
};

// Appends plain values to a byte string.
class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}
  template <typename T>
  Writer& value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_->append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  Writer& bytes(std::string_view v) {
    out_->append(v);
    return *this;
  }

 private:
  std::string* out_;
};

// Takes plain values from a byte string; throws std::runtime_error past its end.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T v;
    std::memcpy(&v, take(sizeof v).data(), sizeof v);
    return v;
  }
  std::string_view rest() { return take(in_.size()); }

 private:
  std::string_view take(size_t n) {
    if (n > in_.size()) throw std::runtime_error("a control record is cut short");
    std::string_view v = in_.substr(0, n);
    in_.remove_prefix(n);
    return v;
  }
  std::string_view in_;
};

// Names are agreed per process set: what is interned is the set's number and the name.
inline std::string scoped_name(uint32_t process_set, std::string_view name) {
  std::string out;
  Writer(&out).value(process_set).bytes(name);
  return out;
}

}  // namespace sirtaki

#endif  // SIRTAKI_MESSAGES_H_
