#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"
#include "libs/kernels/gemm/tile_avx512-inl.h"

namespace atelier {
namespace {

// One fp32 sum per element, over the pairs of k in ascending order.
struct Dot {
  using Sum = __m512;

  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }
  static Sum Start(const TileArgs&, size_t) { return _mm512_setzero_ps(); }
  static __m512bh Prepare(__m512i weights) { return reinterpret_cast<__m512bh>(weights); }
  static Sum Add(Sum sum, __m512bh weights, __m512i activations) {
    return _mm512_dpbf16_ps(sum, weights, reinterpret_cast<__m512bh>(activations));
  }
  static void Store(const TileArgs& tile, size_t row, Sum sum) {
    _mm512_storeu_ps(tile.out + row * tile.out_stride, sum);
  }
};

}  // namespace

void Bf16Avx512Bf16(const MicroKernelArgs& args) { RunPanels<Avx512Tile<Dot>>(args); }

}  // namespace atelier
