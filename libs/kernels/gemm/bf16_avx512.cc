#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"
#include "libs/kernels/gemm/tile_avx512-inl.h"

namespace atelier {
namespace {

// A 32-bit lane holds the bf16 of an even k below the one of an odd k; each becomes a float.
inline __m512 Even(__m512i pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
inline __m512 Odd(__m512i pair) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(pair, mask));
}

// One fp32 sum per element, fused, in ascending k.
struct Dot {
  using Sum = __m512;
  struct Weights {
    __m512 even, odd;
  };

  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }
  static Sum Start(const TileArgs&, size_t) { return _mm512_setzero_ps(); }
  static Weights Prepare(__m512i weights) { return {Even(weights), Odd(weights)}; }
  static Sum Add(Sum sum, const Weights& weights, __m512i activations) {
    sum = _mm512_fmadd_ps(Even(activations), weights.even, sum);
    return _mm512_fmadd_ps(Odd(activations), weights.odd, sum);
  }
  static void Store(const TileArgs& tile, size_t row, Sum sum) {
    _mm512_storeu_ps(tile.out + row * tile.out_stride, sum);
  }
};

}  // namespace

void Bf16Avx512(const MicroKernelArgs& args) { RunPanels<Avx512Tile<Dot>>(args); }

}  // namespace atelier
