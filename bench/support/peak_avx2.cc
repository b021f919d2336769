#include <immintrin.h>

#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 12;

// Hides a value from the optimiser, so that nothing is hoisted, folded or merged.
template <typename T>
inline void Hide(T& value) {
  asm volatile("" : "+x"(value));
}

// AVX2 alone has no exact u8 x s8 dot product: 16-bit products in pairs, added in 32 bits.
uint32_t RunInt8(int64_t iterations) {
  __m256i sums[kChains], a = _mm256_set1_epi16(3);
  const __m256i b = _mm256_set1_epi16(5);
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sums[c] = _mm256_setzero_si256();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      Hide(a);
      sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(a, b));
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 12
  for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm256_extract_epi32(sums[0], 0));
}

uint32_t RunBf16(int64_t iterations) {
  __m256 sums[kChains], a = _mm256_set1_ps(0.5f);
  const __m256 b = _mm256_set1_ps(0.25f);
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sums[c] = _mm256_setzero_ps();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm256_fmadd_ps(a, b, sums[c]);
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 12
  for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_ps(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm256_cvtss_f32(sums[0]) > 0);
}

}  // namespace

PeakLoops PeakLoopsAvx2() { return {{RunInt8, kChains * 32.0}, {RunBf16, kChains * 16.0}}; }

uint32_t ReadStreamAvx2(const uint8_t* data, size_t bytes) {
  __m256i sums[4];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t i = 0; i < bytes; i += 128) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(data + i + j * 32);
      sums[j] = _mm256_or_si256(sums[j], _mm256_load_si256(at));
    }
  }
  const __m256i all =
      _mm256_or_si256(_mm256_or_si256(sums[0], sums[1]), _mm256_or_si256(sums[2], sums[3]));
  return static_cast<uint32_t>(_mm256_testz_si256(all, all));
}

}  // namespace atelier
