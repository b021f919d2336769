#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/int8_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"
#include "libs/kernels/gemm/tile_avx512-inl.h"

namespace atelier {
namespace {

// As int8_avx2.cc: vpmaddubsw would saturate, so even and odd bytes are widened for vpmaddwd.
inline __m512i EvenWeights(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi16(0x00ff));
}
inline __m512i OddWeights(__m512i bytes) { return _mm512_srli_epi16(bytes, 8); }
inline __m512i EvenCodes(__m512i bytes) {
  return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
}
inline __m512i OddCodes(__m512i bytes) { return _mm512_srai_epi16(bytes, 8); }

struct Dot : Int8Sums {
  struct Weights {
    __m512i even, odd;
  };

  static Weights Prepare(__m512i weights) { return {EvenWeights(weights), OddWeights(weights)}; }
  static Sum Add(Sum sum, const Weights& weights, __m512i activations) {
    const __m512i even = _mm512_madd_epi16(weights.even, EvenCodes(activations));
    const __m512i odd = _mm512_madd_epi16(weights.odd, OddCodes(activations));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
  }
};

}  // namespace

void Int8Avx512(const MicroKernelArgs& args) { RunPanels<Avx512Tile<Dot>>(args); }

}  // namespace atelier
