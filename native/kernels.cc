#include "kernels.h"

#include <algorithm>
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
  } else {
    return static_cast<T>(v);
  }
}

// Signed overflow wraps, as in NumPy.
template <typename Acc>
SIRTAKI_INLINE Acc add(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    using U = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// An element at any address: a user's array may be a view that begins anywhere.
template <typename T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

template <typename In, typename Acc, typename Out>
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
        for (size_t i = 0; i < m; ++i) acc[i] = add(acc[i], load<Acc>(source[i].value));
      }
    } else {
      const Acc factor = static_cast<Acc>(scaling.prescale);
      for (size_t i = 0; i < m; ++i) acc[i] = load<Acc>(first[i].value) * factor;
      for (size_t s = 1; s < num_sources; ++s) {
        const Unaligned<In>* source = sources[s] + base;
        for (size_t i = 0; i < m; ++i) acc[i] = add(acc[i], load<Acc>(source[i].value) * factor);
      }
    }
    if (scaling.divisor != 1) {
      const Acc divisor = static_cast<Acc>(scaling.divisor);
      for (size_t i = 0; i < m; ++i) acc[i] = acc[i] / divisor;
    }
    if (scaling.postscale != 1.0) {
      const Acc factor = static_cast<Acc>(scaling.postscale);
      for (size_t i = 0; i < m; ++i) acc[i] = acc[i] * factor;
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

template <typename In, typename Acc, typename Out>
SIRTAKI_INLINE void combine_void(void* result, const void* const* sources, size_t num_sources, size_t n,
                                 const Scaling& scaling) {
  const auto* typed = reinterpret_cast<const Unaligned<In>* const*>(sources);
  auto* out = static_cast<Unaligned<Out>*>(result);
  if constexpr (std::is_floating_point_v<In> && std::is_same_v<In, Out>) {
    if (num_sources == 2 && scaling.prescale == 1.0 && scaling.postscale == 1.0 &&
        (scaling.divisor == 1 || scaling.divisor == 2)) {
      combine_two<In>(out, typed[0], typed[1], n, static_cast<In>(scaling.divisor == 2 ? 0.5 : 1.0));
      return;
    }
  }
  combine<In, Acc, Out>(out, typed, num_sources, n, scaling);
}

// The compiler makes versions of functions, not of templates, so each type has its three functions by name.
#define SIRTAKI_KERNELS(name, T, Acc)                                                       \
  SIRTAKI_VECTORIZED void name##_reduce(void* r, const void* const* s, size_t k, size_t n,  \
                                        const Scaling& c) {                                 \
    combine_void<T, Acc, T>(r, s, k, n, c);                                                 \
  }                                                                                         \
  SIRTAKI_VECTORIZED void name##_partial(void* r, const void* const* s, size_t k, size_t n, \
                                         const Scaling& c) {                                \
    combine_void<T, Acc, Acc>(r, s, k, n, Scaling{c.prescale, 1, 1.0});                     \
  }                                                                                         \
  SIRTAKI_VECTORIZED void name##_finish(void* r, const void* const* s, size_t k, size_t n,  \
                                        const Scaling& c) {                                 \
    combine_void<Acc, Acc, T>(r, s, k, n, Scaling{1.0, c.divisor, c.postscale});            \
  }                                                                                         \
  constexpr Kernels k##name{sizeof(T), sizeof(Acc), name##_reduce, name##_partial, name##_finish};

SIRTAKI_KERNELS(Int32, int32_t, int32_t)
SIRTAKI_KERNELS(Int64, int64_t, int64_t)
SIRTAKI_KERNELS(Float16, Half, float)
SIRTAKI_KERNELS(Bfloat16, BFloat16, float)
SIRTAKI_KERNELS(Float32, float, float)
SIRTAKI_KERNELS(Float64, double, double)

#undef SIRTAKI_KERNELS

}  // namespace

const Kernels* find_kernels(int32_t dtype, int32_t) {
  switch (dtype) {
    case SIRTAKI_INT32:
      return &kInt32;
    case SIRTAKI_INT64:
      return &kInt64;
    case SIRTAKI_FLOAT16:
      return &kFloat16;
    case SIRTAKI_BFLOAT16:
      return &kBfloat16;
    case SIRTAKI_FLOAT32:
      return &kFloat32;
    case SIRTAKI_FLOAT64:
      return &kFloat64;
    default:
      return nullptr;
  }
}

}  // namespace sirtaki
