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

struct Dot : Int8Sums {
  static __m512i Prepare(__m512i weights) { return weights; }
  static Sum Add(Sum sum, __m512i weights, __m512i activations) {
    return _mm512_dpbusd_epi32(sum, weights, activations);
  }
};

}  // namespace

void Int8Avx512Vnni(const MicroKernelArgs& args) { RunPanels<Avx512Tile<Dot>>(args); }

}  // namespace atelier
