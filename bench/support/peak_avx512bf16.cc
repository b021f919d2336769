#include <immintrin.h>

#include "bench/support/peak_chains-inl.h"
#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 24;

uint32_t Run(int64_t iterations) {
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f00));
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3e80));
  const auto step = [&](auto sum) { return _mm512_dpbf16_ps(sum, a, b); };
  const auto add = [](auto x, auto y) { return _mm512_add_ps(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm512_setzero_ps(), step, add);
  return static_cast<uint32_t>(_mm512_cvtss_f32(sum) > 0);
}

}  // namespace

PeakLoops PeakLoopsAvx512Bf16() { return {{}, {Run, kChains * 64.0}}; }

}  // namespace atelier
