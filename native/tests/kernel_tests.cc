// The reduction kernels against plain loops: all types, lengths around the edges of blocks and vectors, and
// buffers at any address. Bit for bit, on values whose sums are exact.
#include <algorithm>
#include <complex>
#include <cstring>
#include <string>
#include <vector>

#include "../dtypes.h"
#include "../engine_abi.h"
#include "../kernels.h"
#include "../platform.h"
#include "check.h"

namespace sirtaki::testing {
namespace {

// Small whole numbers, exact in all types.
int value_of(size_t source, size_t index) { return static_cast<int>((source * 3 + index) % 7); }

uint16_t bfloat16_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Of a whole number below 2048.
uint16_t float16_bits(int value) {
  if (value == 0) return 0;
  int exponent = 0;
  while (value >> (exponent + 1) != 0) ++exponent;
  const int mantissa = (value << (10 - exponent)) & 0x3ff;
  return static_cast<uint16_t>((exponent + 15) << 10 | mantissa);
}

template <typename T>
void append(std::vector<char>* out, T value) {
  const auto* bytes = reinterpret_cast<const char*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof value);
}

using Value = std::complex<double>;

void append_as(std::vector<char>* out, int32_t dtype, Value value) {
  const double real = value.real();
  switch (dtype) {
    case SIRTAKI_BOOL:
      return append(out, real != 0);
    case SIRTAKI_UINT8:
      return append(out, static_cast<uint8_t>(real));
    case SIRTAKI_INT8:
      return append(out, static_cast<int8_t>(real));
    case SIRTAKI_UINT16:
      return append(out, static_cast<uint16_t>(real));
    case SIRTAKI_INT16:
      return append(out, static_cast<int16_t>(real));
    case SIRTAKI_UINT32:
      return append(out, static_cast<uint32_t>(real));
    case SIRTAKI_INT32:
      return append(out, static_cast<int32_t>(real));
    case SIRTAKI_UINT64:
      return append(out, static_cast<uint64_t>(real));
    case SIRTAKI_INT64:
      return append(out, static_cast<int64_t>(real));
    case SIRTAKI_FLOAT16:
      return append(out, float16_bits(static_cast<int>(real)));
    case SIRTAKI_BFLOAT16:
      return append(out, bfloat16_bits(static_cast<float>(real)));
    case SIRTAKI_FLOAT32:
      return append(out, static_cast<float>(real));
    case SIRTAKI_FLOAT64:
      return append(out, real);
    case SIRTAKI_COMPLEX64:
      return append(out, std::complex<float>(value));
    default:
      return append(out, value);
  }
}

constexpr int32_t kNumTypes = SIRTAKI_COMPLEX128 + 1;

bool is_complex(int32_t dtype) { return dtype == SIRTAKI_COMPLEX64 || dtype == SIRTAKI_COMPLEX128; }

// As docs/types.md has it, without Adasum, which has no kernels.
bool has_meaning(int32_t dtype, int32_t op) {
  if (dtype == SIRTAKI_BOOL) return op == SIRTAKI_MIN || op == SIRTAKI_MAX || op == SIRTAKI_PRODUCT;
  return !is_complex(dtype) || (op != SIRTAKI_MIN && op != SIRTAKI_MAX);
}

struct Case {
  int32_t dtype;
  int32_t op;
  size_t num_sources;
  size_t n;
  size_t misalignment;  // in bytes
};

std::string show_case(const Case& c) {
  return "type " + std::to_string(c.dtype) + ", operation " + std::to_string(c.op) + ", " +
         std::to_string(c.num_sources) + " sources, length " + std::to_string(c.n) + ", off by " +
         std::to_string(c.misalignment);
}

// Buffers that begin `misalignment` bytes after a multiple of 64 and end at their allocation's end, so that
// the address sanitizer sees a read or write past it.
class Buffer {
 public:
  Buffer(const std::vector<char>& content, size_t misalignment) : offset_(misalignment) {
    memory_.resize(offset_ + content.size());
    memory_.shrink_to_fit();
    if (!content.empty()) std::memcpy(data(), content.data(), content.size());
  }
  char* data() { return memory_.data() + offset_; }
  std::vector<char> content() const {
    return {memory_.begin() + static_cast<std::ptrdiff_t>(offset_), memory_.end()};
  }

 private:
  size_t offset_;
  std::vector<char> memory_;
};

// Values whose results are exact in all types.
Value value_in(const Case& c, size_t source, size_t index) {
  const int small = value_of(source, index);
  Value value = small;
  if (c.dtype == SIRTAKI_BOOL) value = small % 2;
  if (c.op == SIRTAKI_PRODUCT && c.dtype != SIRTAKI_BOOL) value = small % 2 + 1;
  if (is_complex(c.dtype)) value += Value(0, static_cast<double>((source + index) % 2));
  // The average is whole.
  return c.op == SIRTAKI_AVERAGE ? value * static_cast<double>(c.num_sources) : value;
}

Value combined(const Case& c, size_t index) {
  Value result = value_in(c, 0, index);
  for (size_t s = 1; s < c.num_sources; ++s) {
    const Value next = value_in(c, s, index);
    if (c.op == SIRTAKI_MIN) {
      result = std::min(result.real(), next.real());
    } else if (c.op == SIRTAKI_MAX) {
      result = std::max(result.real(), next.real());
    } else if (c.op == SIRTAKI_PRODUCT) {
      result *= next;
    } else {
      result += next;
    }
  }
  return c.op == SIRTAKI_AVERAGE ? result / static_cast<double>(c.num_sources) : result;
}

void check_reduction(const Case& c) {
  const Kernels* kernels = find_kernels(c.dtype, c.op);
  if (!expect(kernels != nullptr, show_case(c))) return;
  expect_equal(kernels->element_bytes, dtype_size(c.dtype));
  Scaling scaling;
  if (c.op == SIRTAKI_AVERAGE) scaling.divisor = static_cast<int64_t>(c.num_sources);
  std::vector<Buffer> sources;
  std::vector<char> expected;
  for (size_t s = 0; s < c.num_sources; ++s) {
    std::vector<char> content;
    for (size_t i = 0; i < c.n; ++i) append_as(&content, c.dtype, value_in(c, s, i));
    sources.emplace_back(content, c.misalignment);
  }
  for (size_t i = 0; i < c.n; ++i) append_as(&expected, c.dtype, combined(c, i));
  std::vector<const void*> pointers;
  for (Buffer& source : sources) pointers.push_back(source.data());

  const DefaultFloatMode float_mode;
  Buffer result(std::vector<char>(expected.size()), c.misalignment);
  kernels->reduce(result.data(), pointers.data(), pointers.size(), c.n, scaling);
  expect(result.content() == expected, "the result is right: " + show_case(c));

  // By way of partial results: two groups as if from two hosts.
  const size_t half = (c.num_sources + 1) / 2;
  std::vector<Buffer> partials;
  std::vector<const void*> partial_pointers;
  for (size_t begin = 0; begin < c.num_sources; begin += half) {
    partials.emplace_back(std::vector<char>(c.n * kernels->partial_bytes), 0);
    kernels->reduce_partial(partials.back().data(), pointers.data() + begin,
                            std::min(half, c.num_sources - begin), c.n, scaling);
  }
  for (Buffer& partial : partials) partial_pointers.push_back(partial.data());
  Buffer finished(std::vector<char>(expected.size()), c.misalignment);
  kernels->finish_partials(finished.data(), partial_pointers.data(), partial_pointers.size(), c.n, scaling);
  expect(finished.content() == expected, "the result of partial results is right: " + show_case(c));

  // In place.
  kernels->reduce(sources.back().data(), pointers.data(), pointers.size(), c.n, scaling);
  expect(sources.back().content() == expected, "the result in place is right: " + show_case(c));
}

template <typename Body>
void for_every_cell(const Body& body) {
  for (int32_t dtype = 0; dtype < kNumTypes; ++dtype) {
    for (int32_t op : {SIRTAKI_AVERAGE, SIRTAKI_SUM, SIRTAKI_MIN, SIRTAKI_MAX, SIRTAKI_PRODUCT}) {
      if (has_meaning(dtype, op)) body(dtype, op);
    }
  }
}

void cells_without_meaning_have_no_kernels() {
  for (int32_t dtype = 0; dtype < kNumTypes; ++dtype) {
    for (int32_t op : {SIRTAKI_AVERAGE, SIRTAKI_SUM, SIRTAKI_MIN, SIRTAKI_MAX, SIRTAKI_PRODUCT}) {
      expect_equal(find_kernels(dtype, op) != nullptr, has_meaning(dtype, op));
      expect_equal(is_reducible(dtype, op), has_meaning(dtype, op));
    }
    expect(find_kernels(dtype, SIRTAKI_ADASUM) == nullptr, "Adasum is made of sums");
    const bool is_float = dtype >= SIRTAKI_FLOAT16 && dtype <= SIRTAKI_FLOAT64;
    expect_equal(is_reducible(dtype, SIRTAKI_ADASUM), is_float);
  }
  expect(find_kernels(kNumTypes, SIRTAKI_SUM) == nullptr && find_kernels(-1, SIRTAKI_SUM) == nullptr,
         "numbers that are no types have none");
}

void results_are_right() {
  for_every_cell([](int32_t dtype, int32_t op) {
    for (size_t num_sources : {1, 2, 3, 5}) {
      for (size_t n : {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1025, 2500}) {
        check_reduction({dtype, op, num_sources, n, 0});
      }
    }
  });
}

void results_are_right_at_any_address() {
  for_every_cell([](int32_t dtype, int32_t op) {
    for (size_t num_sources : {2, 3}) {
      for (size_t misalignment : {1, 2, 3, 4, 8, 31}) {
        check_reduction({dtype, op, num_sources, 1100, misalignment});
      }
    }
  });
}

void scaling_happens_once_and_in_its_place() {
  const Kernels* kernels = find_kernels(SIRTAKI_FLOAT32, SIRTAKI_SUM);
  const std::vector<float> a{1, 2, 3};
  const std::vector<float> b{10, 20, 30};
  const void* sources[] = {a.data(), b.data(), a.data()};
  std::vector<float> result(3);
  const DefaultFloatMode float_mode;
  kernels->reduce(result.data(), sources, 3, 3, Scaling{0.5, 3, 4.0});
  expect_equal(result, std::vector<float>{8, 16, 24});
  kernels->reduce(result.data(), sources, 2, 3, Scaling{1.0, 2, 1.0});
  expect_equal(result, std::vector<float>{5.5, 11, 16.5});
}

void integers_wrap() {
  const std::vector<int32_t> a{INT32_MAX, INT32_MIN, -1};
  const std::vector<int32_t> b{1, -1, 2};
  const void* sources[] = {a.data(), b.data()};
  std::vector<int32_t> result(3);
  find_kernels(SIRTAKI_INT32, SIRTAKI_SUM)->reduce(result.data(), sources, 2, 3, {});
  expect_equal(result, std::vector<int32_t>{INT32_MIN, INT32_MAX, 1});
}

}  // namespace

void add_kernel_tests(Suite* suite) {
  suite->add("kernels: cells without meaning have no kernels", cells_without_meaning_have_no_kernels);
  suite->add("kernels: results are right", results_are_right);
  suite->add("kernels: results are right at any address", results_are_right_at_any_address);
  suite->add("kernels: scaling happens once and in its place", scaling_happens_once_and_in_its_place);
  suite->add("kernels: integers wrap", integers_wrap);
}

}  // namespace sirtaki::testing
