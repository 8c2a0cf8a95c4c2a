// Rings of records in shared memory: one writer, and one reader (up) or several (the log).
//
// A position counts bytes since the ring was made and never wraps; the place in memory is position modulo the
// capacity. Records are a frame {bytes, type} and a payload, padded to 8 bytes, and may wrap around the end.
#ifndef SIRTAKI_RING_H_
#define SIRTAKI_RING_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "messages.h"

namespace sirtaki {

struct RecordFrame {
  uint32_t payload_bytes;
  uint32_t type;
};

// The bytes of a ring; who may read and write when is the caller's business.
class RingBytes {
 public:
  RingBytes(char* data, uint64_t capacity) : data_(data), capacity_(capacity) {}

  static uint64_t record_bytes(size_t payload_bytes) {
    return sizeof(RecordFrame) + ((payload_bytes + 7) & ~size_t{7});
  }

  void put(uint64_t position, Record type, std::string_view payload) {
    const RecordFrame frame{static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(type)};
    copy_in(position, &frame, sizeof frame);
    copy_in(position + sizeof frame, payload.data(), payload.size());
  }

  // Returns the position of the next record.
  uint64_t get(uint64_t position, Record* type, std::string* payload) const {
    RecordFrame frame;
    copy_out(position, &frame, sizeof frame);
    *type = static_cast<Record>(frame.type);
    payload->resize(frame.payload_bytes);
    copy_out(position + sizeof frame, payload->data(), frame.payload_bytes);
    return position + record_bytes(frame.payload_bytes);
  }

 private:
  void copy_in(uint64_t position, const void* from, size_t n) {
    if (n == 0) return;  // an empty payload may have no address
    const uint64_t at = position % capacity_;
    const size_t head = std::min<uint64_t>(n, capacity_ - at);
    std::memcpy(data_ + at, from, head);
    std::memcpy(data_, static_cast<const char*>(from) + head, n - head);
  }
  void copy_out(uint64_t position, void* to, size_t n) const {
    if (n == 0) return;
    const uint64_t at = position % capacity_;
    const size_t head = std::min<uint64_t>(n, capacity_ - at);
    std::memcpy(to, data_ + at, head);
    std::memcpy(static_cast<char*>(to) + head, data_, n - head);
  }

  char* data_;
  uint64_t capacity_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_RING_H_
