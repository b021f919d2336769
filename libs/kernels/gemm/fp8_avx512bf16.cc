#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_avx512-inl.h"
#include "libs/kernels/gemm/fp8_loop-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

// One byte of the bf16 of every magnitude.
struct ByteTable {
  alignas(64) uint8_t bytes[128];
};
constexpr ByteTable TableOf(int shift) {
  ByteTable table{};
  for (uint32_t code = 0; code < 128; ++code) {
    table.bytes[code] = static_cast<uint8_t>(Fp8ToBf16(code) >> shift & 0xff);
  }
  return table;
}
constexpr ByteTable kLowBytes = TableOf(0);
constexpr ByteTable kHighBytes = TableOf(8);

inline __m512i LookUp(const ByteTable& table, __m512i codes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table.bytes), codes,
                                  _mm512_load_si512(table.bytes + 64));
}

// The sign bits of `codes` into bytes that have none.
inline __m512i WithSign(__m512i bytes, __m512i codes) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  return _mm512_ternarylogic_epi32(bytes, codes, sign, 0xf8);  // bytes | (codes & sign)
}

inline int32_t LoadPair(const uint8_t* at) {
  int32_t pair;
  __builtin_memcpy(&pair, at, sizeof(pair));
  return pair;
}

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

struct Isa {
  using Floats = Lanes;
  static constexpr size_t kRowBlock = 8;

  // The k in pairs, the 16 columns of a pair in 64 bytes.
  struct Weights {
    alignas(64) uint8_t pairs[kFp8BlockK / 2 * 64];
  };

  static void Widen(const uint8_t* codes, size_t groups, Weights& weights) {
    uint8_t* to = weights.pairs;
    for (size_t i = 0; i < groups * kFp8GroupCodes; i += 64, to += 128) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + i + kFp8Ahead), _MM_HINT_T0);
      const __m512i quad = _mm512_load_si512(codes + i);
      const __m512i low = LookUp(kLowBytes, quad);
      const __m512i high = WithSign(LookUp(kHighBytes, quad), quad);
      _mm512_store_si512(to, _mm512_unpacklo_epi8(low, high));
      _mm512_store_si512(to + 64, _mm512_unpackhi_epi8(low, high));
    }
  }

  // Two sums per element: pairs of even and of odd index, each ascending, added at the end of each
  // group of k that shares a scale.
  template <Fp8Scales kScales, size_t kRows>
  static void Add(const Fp8Rows<Weights>& block, size_t groups) {
    constexpr bool kByGroup = kScales == Fp8Scales::kGroups;
    const size_t pairs = kByGroup ? kFp8GroupK / 2 : groups * kFp8GroupK / 2;
    for (size_t g = 0; g < (kByGroup ? groups : 1); ++g) {
      __m512 sums[kRows][2];
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
      for (size_t pair = g * pairs; pair < (g + 1) * pairs; pair += 2) {
        AddTwoPairs<kRows>(block, pair, sums);
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        AddScaled<Lanes, kScales>(block.scales, g, 0, _mm512_add_ps(sums[r][0], sums[r][1]),
                                  block.totals + r * 16);
      }
    }
  }

 private:
  template <size_t kRows>
  static void AddTwoPairs(const Fp8Rows<Weights>& block, size_t pair, __m512 (&sums)[kRows][2]) {
    const __m512bh first = AsBf16(_mm512_load_si512(block.weights.pairs + pair * 64));
    const __m512bh second = AsBf16(_mm512_load_si512(block.weights.pairs + pair * 64 + 64));
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const uint8_t* at = block.activations + r * block.activation_stride + pair * 4;
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], first, AsBf16(_mm512_set1_epi32(LoadPair(at))));
      sums[r][1] =
          _mm512_dpbf16_ps(sums[r][1], second, AsBf16(_mm512_set1_epi32(LoadPair(at + 4))));
    }
  }
};

}  // namespace

extern constexpr Fp8Kernels kFp8Avx512Bf16Kernels = AllFp8Kernels<Isa>();

}  // namespace atelier
