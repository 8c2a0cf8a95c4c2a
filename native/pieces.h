// The tensors of a batch seen as one run of bytes, one after the other without gaps.
#ifndef SIRTAKI_PIECES_H_
#define SIRTAKI_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace sirtaki {

struct Piece {
  const char* input;
  char* output;
  size_t bytes;
};

inline size_t total_bytes(const std::vector<Piece>& pieces) {
  size_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  return total;
}

// Walks forward through the pieces, copying out of their inputs or into their outputs.
class PieceCursor {
 public:
  explicit PieceCursor(const std::vector<Piece>* pieces) : pieces_(pieces) {}

  void copy_inputs_to(char* to, size_t n) {
    walk(n, [&](const Piece& piece, size_t offset, size_t m) {
      std::memcpy(to, piece.input + offset, m);
      to += m;
    });
  }
  void copy_to_outputs(const char* from, size_t n) {
    walk(n, [&](const Piece& piece, size_t offset, size_t m) {
      std::memcpy(piece.output + offset, from, m);
      from += m;
    });
  }

 private:
  template <typename Copy>
  void walk(size_t n, const Copy& copy) {
    while (n > 0) {
      const Piece& piece = (*pieces_)[index_];
      const size_t m = std::min(n, piece.bytes - offset_);
      if (m > 0) copy(piece, offset_, m);
      offset_ += m;
      n -= m;
      if (offset_ == piece.bytes) {
        ++index_;
        offset_ = 0;
      }
    }
  }

  const std::vector<Piece>* pieces_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

}  // namespace sirtaki

#endif  // SIRTAKI_PIECES_H_
