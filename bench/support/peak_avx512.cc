#include <immintrin.h>

#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 24;

// Hides a value from the optimiser, so that nothing is hoisted, folded or merged.
template <typename T>
inline void Hide(T& value) {
  asm volatile("" : "+v"(value));
}

// Without VNNI there is no exact u8 x s8 dot product: 16-bit products in pairs, added in 32 bits.
uint32_t RunInt8(int64_t iterations) {
  __m512i sums[kChains], a = _mm512_set1_epi16(3);
  const __m512i b = _mm512_set1_epi16(5);
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_si512();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      Hide(a);
      sums[c] = _mm512_add_epi32(sums[c], _mm512_madd_epi16(a, b));
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm512_cvtsi512_si32(sums[0]));
}

uint32_t RunBf16(int64_t iterations) {
  __m512 sums[kChains];
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_ps();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_fmadd_ps(a, b, sums[c]);
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm512_cvtss_f32(sums[0]) > 0);
}

}  // namespace

PeakLoops PeakLoopsAvx512() { return {{RunInt8, kChains * 64.0}, {RunBf16, kChains * 32.0}}; }

uint32_t ReadStreamAvx512(const uint8_t* data, size_t bytes) {
  __m512i sums[4];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      sums[j] = _mm512_or_si512(sums[j], _mm512_load_si512(data + i + j * 64));
    }
  }
  const __m512i all =
      _mm512_or_si512(_mm512_or_si512(sums[0], sums[1]), _mm512_or_si512(sums[2], sums[3]));
  return static_cast<uint32_t>(_mm512_test_epi32_mask(all, all));
}

}  // namespace atelier
