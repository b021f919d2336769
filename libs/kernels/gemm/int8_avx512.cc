#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/int8_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

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

struct Tile {
  static constexpr int kRowBlock = 8;
  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    __m512i sums[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r] = _mm512_set1_epi32(tile.row_offsets[r]);
    for (size_t g = 0; g < tile.groups; ++g) {
      const __m512i weights = _mm512_load_si512(tile.panel + g * kGroupStride);
      const __m512i even = EvenWeights(weights);
      const __m512i odd = OddWeights(weights);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i codes =
            _mm512_set1_epi32(LoadGroup(tile.activations + r * tile.activation_stride + g * 4));
        const __m512i products = _mm512_add_epi32(_mm512_madd_epi16(even, EvenCodes(codes)),
                                                  _mm512_madd_epi16(odd, OddCodes(codes)));
        sums[r] = _mm512_add_epi32(sums[r], products);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) StoreScaled(tile, r, sums[r]);
  }
};

}  // namespace

void Int8Avx512(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
