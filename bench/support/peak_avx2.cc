#include <immintrin.h>

#include "bench/support/peak_chains-inl.h"
#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 12;

// AVX2 alone has no exact u8 x s8 dot product: 16-bit products in pairs, added in 32 bits.
uint32_t RunInt8(int64_t iterations) {
  auto step = [a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(5)](auto sum) mutable {
    Hide(a);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  };
  const auto add = [](auto x, auto y) { return _mm256_add_epi32(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm256_setzero_si256(), step, add);
  return static_cast<uint32_t>(_mm256_extract_epi32(sum, 0));
}

uint32_t RunBf16(int64_t iterations) {
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  const auto step = [&](auto sum) { return _mm256_fmadd_ps(a, b, sum); };
  const auto add = [](auto x, auto y) { return _mm256_add_ps(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm256_setzero_ps(), step, add);
  return static_cast<uint32_t>(_mm256_cvtss_f32(sum) > 0);
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
