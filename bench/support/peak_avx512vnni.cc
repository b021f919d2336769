#include <immintrin.h>

#include "bench/support/peak_chains-inl.h"
#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 24;

uint32_t Run(int64_t iterations) {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  const auto step = [&](auto sum) { return _mm512_dpbusd_epi32(sum, a, b); };
  const auto add = [](auto x, auto y) { return _mm512_add_epi32(x, y); };
  const auto sum = RunChains<kChains>(iterations, _mm512_setzero_si512(), step, add);
  return static_cast<uint32_t>(_mm512_cvtsi512_si32(sum));
}

}  // namespace

PeakLoops PeakLoopsAvx512Vnni() { return {{Run, kChains * 128.0}, {}}; }

}  // namespace atelier
