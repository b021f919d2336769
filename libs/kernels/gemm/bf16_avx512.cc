#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

// A 32-bit lane holds the bf16 of an even k below the one of an odd k; each becomes a float.
inline __m512 Even(__m512i pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
inline __m512 Odd(__m512i pair) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(pair, mask));
}

// Two fp32 sums per element, fused: even and odd k, each ascending, added at the end.
struct Tile {
  static constexpr int kRowBlock = 8;
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    __m512 sums[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (size_t g = 0; g < tile.groups; ++g) {
      const __m512i weights = _mm512_load_si512(tile.panel + g * kGroupStride);
      const __m512 even = Even(weights);
      const __m512 odd = Odd(weights);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        int32_t bits;
        __builtin_memcpy(&bits, tile.activations + r * tile.activation_stride + g * 4, 4);
        const __m512i pair = _mm512_set1_epi32(bits);
        sums[r][0] = _mm512_fmadd_ps(Even(pair), even, sums[r][0]);
        sums[r][1] = _mm512_fmadd_ps(Odd(pair), odd, sums[r][1]);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(tile.out + r * tile.out_stride, _mm512_add_ps(sums[r][0], sums[r][1]));
    }
  }
};

}  // namespace

void Bf16Avx512(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
