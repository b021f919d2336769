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

uint32_t Run(int64_t iterations) {
  __m512 sums[kChains];
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f00));
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3e80));
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_ps();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_dpbf16_ps(sums[c], a, b);
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm512_cvtss_f32(sums[0]) > 0);
}

}  // namespace

PeakLoops PeakLoopsAvx512Bf16() { return {{}, {Run, kChains * 64.0}}; }

}  // namespace atelier
