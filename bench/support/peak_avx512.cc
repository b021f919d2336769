#include <immintrin.h>

#include "bench/support/peak_chains-inl.h"
#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 24;

// Without VNNI there is no exact u8 x s8 dot product: 16-bit products in pairs, added in 32 bits.
uint32_t RunInt8(int64_t iterations) {
  auto step = [a = _mm512_set1_epi16(3), b = _mm512_set1_epi16(5)](auto sum) mutable {
    Hide(a);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
  };
  const auto add = [](auto x, auto y) { return _mm512_add_epi32(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm512_setzero_si512(), step, add);
  return static_cast<uint32_t>(_mm512_cvtsi512_si32(sum));
}

uint32_t RunBf16(int64_t iterations) {
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  const auto step = [&](auto sum) { return _mm512_fmadd_ps(a, b, sum); };
  const auto add = [](auto x, auto y) { return _mm512_add_ps(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm512_setzero_ps(), step, add);
  return static_cast<uint32_t>(_mm512_cvtss_f32(sum) > 0);
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
