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
  __m512i sums[kChains];
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sums[c] = _mm512_setzero_si512();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  return static_cast<uint32_t>(_mm512_cvtsi512_si32(sums[0]));
}

}  // namespace

PeakLoops PeakLoopsAvx512Vnni() { return {{Run, kChains * 128.0}, {}}; }

}  // namespace atelier
