#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine_abi.h"

// One build serves every x86-64 machine: the loader picks the widest version that the processor runs. All
// versions compute the same bits, since each element is a fixed sequence of IEEE operations. (Not under the
// thread sanitizer: what the loader calls to pick would run before the sanitizer has started.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SIRTAKI_VECTORIZED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define SIRTAKI_VECTORIZED
#endif
#define SIRTAKI_INLINE inline __attribute__((always_inline))

namespace sirtaki {
namespace {

// 16-bit floats are stored as bits; load and store are their exact widening and their rounding to nearest
// even.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Plain formulas, so that the bits are NumPy's; std::complex corrects NaNs.
template <typename T>
struct Complex {
  T re;
  T im;
};
template <typename T>
SIRTAKI_INLINE Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <typename T>
SIRTAKI_INLINE Complex<T> operator*(Complex<T> a, Complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// Any byte but 0 is true.
struct Bool {
  uint8_t byte;
};

template <typename To, typename From>
SIRTAKI_INLINE To bit_copy(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

SIRTAKI_INLINE float widen(Half h) {
#if defined(__FLT16_MAX__)
  return static_cast<float>(bit_copy<_Float16>(h));
#else
  // The half's exponent and mantissa, placed where a float has them, are the value times 2^-112.
  const uint32_t magnitude = static_cast<uint32_t>(h.bits & 0x7fffu) << 13;
  uint32_t bits = bit_copy<uint32_t>(bit_copy<float>(magnitude) * 0x1p112f);
  if ((h.bits & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;  // infinity or NaN
  return bit_copy<float>(bits | static_cast<uint32_t>(h.bits & 0x8000u) << 16);
#endif
}

SIRTAKI_INLINE Half narrow_half(float f) {
#if defined(__FLT16_MAX__)
  return bit_copy<Half>(static_cast<_Float16>(f));
#else
  const uint32_t bits = bit_copy<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // NaN, quiet
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and above round to infinity
  } else if (magnitude >= 0x38800000u) {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {
    // Below 2^-14 halves are multiples of 2^-24: adding 0.5 makes the processor round there.
    half = bit_copy<uint32_t>(bit_copy<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return Half{static_cast<uint16_t>(sign | half)};
#endif
}

SIRTAKI_INLINE float widen(BFloat16 b) { return bit_copy<float>(static_cast<uint32_t>(b.bits) << 16); }

SIRTAKI_INLINE BFloat16 narrow_bfloat16(float f) {
  const uint32_t bits = bit_copy<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x40u;
  return BFloat16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

template <typename Acc, typename T>
SIRTAKI_INLINE Acc load(T v) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return widen(v);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return v.byte != 0 ? 1 : 0;
  } else {
    return static_cast<Acc>(v);
  }
}

template <typename T, typename Acc>
SIRTAKI_INLINE T store(Acc v) {
  if constexpr (std::is_same_v<T, Half>) {
    return narrow_half(v);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return narrow_bfloat16(v);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return Bool{v};
  } else {
    return static_cast<T>(v);
  }
}

// How two values become one. Integers wrap on overflow, as in NumPy: the low bits of a sum or product do not
// depend on the sign or on the bits above.
struct Add {
  template <typename T>
  static SIRTAKI_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

struct Multiply {
  template <typename T>
  static SIRTAKI_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// Of floats: a NaN wins, the first one; -0 is less than +0, so the result does not depend on the order.
struct Least {
  template <typename T>
  static SIRTAKI_INLINE T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};

struct Greatest {
  template <typename T>
  static SIRTAKI_INLINE T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};

// Factors and divisors are real numbers, in the precision of the accumulator.
template <typename T>
struct FactorOf {
  using type = T;
};
template <typename T>
struct FactorOf<Complex<T>> {
  using type = T;
};
template <typename Acc>
using Factor = typename FactorOf<Acc>::type;

template <typename T>
SIRTAKI_INLINE T scaled(T v, T factor) {
  return static_cast<T>(v * factor);
}
template <typename T>
SIRTAKI_INLINE Complex<T> scaled(Complex<T> v, T factor) {
  return {v.re * factor, v.im * factor};
}
template <typename T>
SIRTAKI_INLINE T divided(T v, T divisor) {
  return static_cast<T>(v / divisor);
}
template <typename T>
SIRTAKI_INLINE Complex<T> divided(Complex<T> v, T divisor) {
  return {v.re / divisor, v.im / divisor};
}

// An element at any address: a user's array may be a view that begins anywhere.
template <typename T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

template <typename Op, typename In, typename Acc, typename Out>
SIRTAKI_INLINE void combine(Unaligned<Out>* result, const Unaligned<In>* const* sources, size_t num_sources,
                            size_t n, const Scaling& scaling) {
  constexpr size_t kBlock = 1024;  // the accumulators stay in the first-level cache
  alignas(64) Acc acc[kBlock];
  for (size_t base = 0; base < n; base += kBlock) {
    const size_t m = std::min(kBlock, n - base);
    const Unaligned<In>* first = sources[0] + base;
    if (scaling.prescale == 1.0) {
      for (size_t i = 0; i < m; ++i) acc[i] = load<Acc>(first[i].value);
      for (size_t s = 1; s < num_sources; ++s) {
        const Unaligned<In>* source = sources[s] + base;
        for (size_t i = 0; i < m; ++i) acc[i] = Op::apply(acc[i], load<Acc>(source[i].value));
      }
    } else {
      const auto factor = static_cast<Factor<Acc>>(scaling.prescale);
      for (size_t i = 0; i < m; ++i) acc[i] = scaled(load<Acc>(first[i].value), factor);
      for (size_t s = 1; s < num_sources; ++s) {
        const Unaligned<In>* source = sources[s] + base;
        for (size_t i = 0; i < m; ++i) acc[i] = Op::apply(acc[i], scaled(load<Acc>(source[i].value), factor));
      }
    }
    if (scaling.divisor != 1) {
      const auto divisor = static_cast<Factor<Acc>>(scaling.divisor);
      for (size_t i = 0; i < m; ++i) acc[i] = divided(acc[i], divisor);
    }
    if (scaling.postscale != 1.0) {
      const auto factor = static_cast<Factor<Acc>>(scaling.postscale);
      for (size_t i = 0; i < m; ++i) acc[i] = scaled(acc[i], factor);
    }
    Unaligned<Out>* out = result + base;
    for (size_t i = 0; i < m; ++i) out[i].value = store<Out>(acc[i]);
  }
}

// Two ranks and a factor that is exact (a division by two is): one pass without the block of accumulators.
template <typename T>
SIRTAKI_INLINE void combine_two(Unaligned<T>* result, const Unaligned<T>* a, const Unaligned<T>* b, size_t n,
                                T factor) {
  if (factor == T{1}) {
    for (size_t i = 0; i < n; ++i) result[i].value = a[i].value + b[i].value;
  } else {
    for (size_t i = 0; i < n; ++i) result[i].value = (a[i].value + b[i].value) * factor;
  }
}

template <typename Op, typename In, typename Acc, typename Out>
SIRTAKI_INLINE void combine_void(void* result, const void* const* sources, size_t num_sources, size_t n,
                                 const Scaling& scaling) {
  const auto* typed = reinterpret_cast<const Unaligned<In>* const*>(sources);
  auto* out = static_cast<Unaligned<Out>*>(result);
  if constexpr (std::is_same_v<Op, Add> && std::is_floating_point_v<In> && std::is_same_v<In, Out>) {
    if (num_sources == 2 && scaling.prescale == 1.0 && scaling.postscale == 1.0 &&
        (scaling.divisor == 1 || scaling.divisor == 2)) {
      combine_two<In>(out, typed[0], typed[1], n, static_cast<In>(scaling.divisor == 2 ? 0.5 : 1.0));
      return;
    }
  }
  combine<Op, In, Acc, Out>(out, typed, num_sources, n, scaling);
}

// The compiler makes versions of functions, not of templates, so each type has its three functions by name.
#define SIRTAKI_KERNELS(name, T, Acc)                                                       \
  SIRTAKI_VECTORIZED void name##_reduce(void* r, const void* const* s, size_t k, size_t n,  \
                                        const Scaling& c) {                                 \
    combine_void<Add, T, Acc, T>(r, s, k, n, c);                                            \
  }                                                                                         \
  SIRTAKI_VECTORIZED void name##_partial(void* r, const void* const* s, size_t k, size_t n, \
                                         const Scaling& c) {                                \
    combine_void<Add, T, Acc, Acc>(r, s, k, n, Scaling{c.prescale, 1, 1.0});                \
  }                                                                                         \
  SIRTAKI_VECTORIZED void name##_finish(void* r, const void* const* s, size_t k, size_t n,  \
                                        const Scaling& c) {                                 \
    combine_void<Add, Acc, Acc, T>(r, s, k, n, Scaling{1.0, c.divisor, c.postscale});       \
  }                                                                                         \
  constexpr Kernels k##name{sizeof(T), sizeof(Acc), name##_reduce, name##_partial, name##_finish};

SIRTAKI_KERNELS(Int32, int32_t, int32_t)
SIRTAKI_KERNELS(Int64, int64_t, int64_t)
SIRTAKI_KERNELS(Float16, Half, float)
SIRTAKI_KERNELS(Bfloat16, BFloat16, float)
SIRTAKI_KERNELS(Float32, float, float)
SIRTAKI_KERNELS(Float64, double, double)

#undef SIRTAKI_KERNELS

// The other cells of the table are rare in training: one version of each is enough.
template <typename Op, typename T, typename Acc>
void reduce(void* r, const void* const* s, size_t k, size_t n, const Scaling& c) {
  combine_void<Op, T, Acc, T>(r, s, k, n, c);
}
template <typename Op, typename T, typename Acc>
void reduce_partial(void* r, const void* const* s, size_t k, size_t n, const Scaling& c) {
  combine_void<Op, T, Acc, Acc>(r, s, k, n, Scaling{c.prescale, 1, 1.0});
}
template <typename Op, typename T, typename Acc>
void finish_partials(void* r, const void* const* s, size_t k, size_t n, const Scaling& c) {
  combine_void<Op, Acc, Acc, T>(r, s, k, n, Scaling{1.0, c.divisor, c.postscale});
}
template <typename Op, typename T, typename Acc = T>
constexpr Kernels kRare{sizeof(T), sizeof(Acc), reduce<Op, T, Acc>, reduce_partial<Op, T, Acc>,
                        finish_partials<Op, T, Acc>};

template <typename T, typename Acc>
const Kernels* order_or_product(int32_t reduce_op) {
  if (reduce_op == SIRTAKI_MIN) return &kRare<Least, T, Acc>;
  if (reduce_op == SIRTAKI_MAX) return &kRare<Greatest, T, Acc>;
  return reduce_op == SIRTAKI_PRODUCT ? &kRare<Multiply, T, Acc> : nullptr;
}

// The sum of an average is exact in 64 bits, so that the mean of small integers is never wrong by wrapping.
template <typename T>
const Kernels* integer_kernels(int32_t reduce_op) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  if (reduce_op == SIRTAKI_SUM) return &kRare<Add, T>;
  if (reduce_op == SIRTAKI_AVERAGE) return &kRare<Add, T, Wide>;
  return order_or_product<T, T>(reduce_op);
}

template <typename T, typename Acc>
const Kernels* float_kernels(int32_t reduce_op, const Kernels* sum) {
  if (reduce_op == SIRTAKI_SUM || reduce_op == SIRTAKI_AVERAGE) return sum;
  return order_or_product<T, Acc>(reduce_op);
}

template <typename T>
const Kernels* complex_kernels(int32_t reduce_op) {
  if (reduce_op == SIRTAKI_SUM || reduce_op == SIRTAKI_AVERAGE) return &kRare<Add, Complex<T>>;
  return reduce_op == SIRTAKI_PRODUCT ? &kRare<Multiply, Complex<T>> : nullptr;
}

const Kernels* bool_kernels(int32_t reduce_op) {
  if (reduce_op == SIRTAKI_MIN || reduce_op == SIRTAKI_PRODUCT) return &kRare<Least, Bool, uint8_t>;
  return reduce_op == SIRTAKI_MAX ? &kRare<Greatest, Bool, uint8_t> : nullptr;
}

}  // namespace

const Kernels* find_kernels(int32_t dtype, int32_t reduce_op) {
  switch (dtype) {
    case SIRTAKI_BOOL:
      return bool_kernels(reduce_op);
    case SIRTAKI_UINT8:
      return integer_kernels<uint8_t>(reduce_op);
    case SIRTAKI_INT8:
      return integer_kernels<int8_t>(reduce_op);
    case SIRTAKI_UINT16:
      return integer_kernels<uint16_t>(reduce_op);
    case SIRTAKI_INT16:
      return integer_kernels<int16_t>(reduce_op);
    case SIRTAKI_UINT32:
      return integer_kernels<uint32_t>(reduce_op);
    case SIRTAKI_INT32:
      return reduce_op == SIRTAKI_SUM ? &kInt32 : integer_kernels<int32_t>(reduce_op);
    case SIRTAKI_UINT64:
      return integer_kernels<uint64_t>(reduce_op);
    case SIRTAKI_INT64:
      return reduce_op == SIRTAKI_SUM ? &kInt64 : integer_kernels<int64_t>(reduce_op);
    case SIRTAKI_FLOAT16:
      return float_kernels<Half, float>(reduce_op, &kFloat16);
    case SIRTAKI_BFLOAT16:
      return float_kernels<BFloat16, float>(reduce_op, &kBfloat16);
    case SIRTAKI_FLOAT32:
      return float_kernels<float, float>(reduce_op, &kFloat32);
    case SIRTAKI_FLOAT64:
      return float_kernels<double, double>(reduce_op, &kFloat64);
    case SIRTAKI_COMPLEX64:
      return complex_kernels<float>(reduce_op);
    case SIRTAKI_COMPLEX128:
      return complex_kernels<double>(reduce_op);
    default:
      return nullptr;
  }
}

bool is_reducible(int32_t dtype, int32_t reduce_op) {
  if (reduce_op != SIRTAKI_ADASUM) return find_kernels(dtype, reduce_op) != nullptr;
  return dtype == SIRTAKI_FLOAT16 || dtype == SIRTAKI_BFLOAT16 || dtype == SIRTAKI_FLOAT32 ||
         dtype == SIRTAKI_FLOAT64;
}

}  // namespace sirtaki
