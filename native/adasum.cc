#include "adasum.h"

#include <algorithm>
#include <array>

namespace sirtaki {
namespace {

// As many running sums as the widest vectors have lanes, added up in a fixed order: the same bits on any
// processor.
constexpr size_t kLanes = 8;
using Dots = std::array<double, 3>;  // a.b, a.a, b.b

template <typename T>
Dots dots(const T* a, const T* b, size_t n) {
  std::array<std::array<double, kLanes>, 3> sums{};
  const auto add = [&](size_t i, size_t lane) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    sums[0][lane] += x * y;
    sums[1][lane] += x * x;
    sums[2][lane] += y * y;
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (size_t lane = 0; i < n; ++i, ++lane) add(i, lane);
  Dots out{};
  for (size_t d = 0; d < out.size(); ++d) {
    for (double sum : sums[d]) out[d] += sum;
  }
  return out;
}

template <typename T>
void combine(T* a, const T* b, size_t n, const Dots& d) {
  // A vector of zeros adds nothing, whatever its factor.
  const double of_a = d[1] == 0.0 ? 1.0 : 1.0 - d[0] / (2.0 * d[1]);
  const double of_b = d[2] == 0.0 ? 1.0 : 1.0 - d[0] / (2.0 * d[2]);
  for (size_t i = 0; i < n; ++i) {
    a[i] = static_cast<T>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

Dots dots_of(const char* a, const char* b, size_t n, bool is_double) {
  if (is_double) return dots(reinterpret_cast<const double*>(a), reinterpret_cast<const double*>(b), n);
  return dots(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), n);
}

void combine_into(char* a, const char* b, size_t n, bool is_double, const Dots& d) {
  if (is_double) {
    combine(reinterpret_cast<double*>(a), reinterpret_cast<const double*>(b), n, d);
  } else {
    combine(reinterpret_cast<float*>(a), reinterpret_cast<const float*>(b), n, d);
  }
}

}  // namespace

bool Adasum::run(Tickets* tickets, const SetLayout& layout, const Kernels& sum, const Kernels& doubles,
                 const Scaling& scaling, const Piece& tensor) {
  const size_t n = layout.size();
  const size_t me = layout.my_member();
  const size_t num_elements = tensor.bytes / sum.element_bytes;
  const size_t step = (num_elements + n - 1) / n;
  const auto begin = [&](size_t m) { return std::min(num_elements, m * step); };
  const auto length = [&](size_t m) { return begin(m + 1) - begin(m); };
  const size_t mine = length(me);

  slices_.resize(std::max(slices_.size(), n * step * sum.element_bytes));
  widened_.resize(std::max(widened_.size(), n * step * sum.partial_bytes));
  std::vector<size_t> bytes(n * n);
  std::vector<Alltoall::Part> parts(n);
  for (size_t m = 0; m < n; ++m) {
    for (size_t s = 0; s < n; ++s) bytes[s * n + m] = length(m) * sum.element_bytes;
    parts[m] = {tensor.input + begin(m) * sum.element_bytes, slices_.data() + m * mine * sum.element_bytes};
  }
  if (!alltoall_->run(tickets, layout, bytes, parts)) return false;
  for (size_t m = 0; m < n; ++m) {
    const void* source = parts[m].output;
    sum.reduce_partial(widened_.data() + m * mine * sum.partial_bytes, &source, 1, mine, scaling);
  }
  if (!add_tree(tickets, layout, doubles, sum.partial_bytes, mine)) return false;
  const void* result = widened_.data();
  sum.finish_partials(slices_.data(), &result, 1, mine, scaling);

  std::vector<Block> blocks(n);
  for (size_t m = 0; m < n; ++m) {
    blocks[m].bytes = length(m) * sum.element_bytes;
    if (blocks[m].bytes == 0) continue;
    blocks[m].pieces.push_back(
        {slices_.data(), tensor.output + begin(m) * sum.element_bytes, blocks[m].bytes});
  }
  return blocks_->run(tickets, layout, blocks);
}

bool Adasum::add_tree(Tickets* tickets, const SetLayout& layout, const Kernels& doubles, size_t partial_bytes,
                      size_t num_elements) {
  const bool is_double = partial_bytes == sizeof(double);
  const size_t slice_bytes = num_elements * partial_bytes;
  const auto slice = [&](size_t m) { return widened_.data() + m * slice_bytes; };
  // At each level those that are still there stand `stride` apart.
  for (size_t stride = 1; stride < layout.size(); stride *= 2) {
    std::vector<Dots> products;
    for (size_t m = 0; m + stride < layout.size(); m += 2 * stride) {
      products.push_back(dots_of(slice(m), slice(m + stride), num_elements, is_double));
    }
    auto* numbers = reinterpret_cast<char*>(products.data());
    const std::vector<Piece> pieces{{numbers, numbers, products.size() * sizeof(Dots)}};
    if (!allreduce_->run(tickets, layout, doubles, Scaling{}, pieces)) return false;
    size_t pair = 0;
    for (size_t m = 0; m + stride < layout.size(); m += 2 * stride) {
      combine_into(slice(m), slice(m + stride), num_elements, is_double, products[pair++]);
    }
  }
  return true;
}

}  // namespace sirtaki
