#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

// vpmaddubsw would saturate (2 * 255 * 127 exceeds int16), so the bytes of even and of odd k are
// widened to 16 bits and multiplied by vpmaddwd, which adds each pair in 32 bits.
inline __m256i EvenWeights(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi16(0x00ff));
}
inline __m256i OddWeights(__m256i bytes) { return _mm256_srli_epi16(bytes, 8); }
inline __m256i EvenCodes(__m256i bytes) {
  return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}
inline __m256i OddCodes(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }

struct Tile {
  static constexpr int kRowBlock = 4;
  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    __m256i sums[kRows][2];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = sums[r][1] = _mm256_set1_epi32(tile.row_offsets[r]);
    }
    for (size_t g = 0; g < tile.groups; ++g) {
#pragma GCC unroll 2
      for (size_t half = 0; half < 2; ++half) {
        const __m256i weights = _mm256_load_si256(
            reinterpret_cast<const __m256i*>(tile.panel + g * kGroupStride + half * 32));
        const __m256i even = EvenWeights(weights);
        const __m256i odd = OddWeights(weights);
#pragma GCC unroll 4
        for (size_t r = 0; r < kRows; ++r) {
          const __m256i codes =
              _mm256_set1_epi32(LoadGroup(tile.activations + r * tile.activation_stride + g * 4));
          const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(even, EvenCodes(codes)),
                                                    _mm256_madd_epi16(odd, OddCodes(codes)));
          sums[r][half] = _mm256_add_epi32(sums[r][half], products);
        }
      }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      StoreScaledSide(tile, r, 0, sums[r][0]);
      StoreScaledSide(tile, r, 1, sums[r][1]);
    }
  }
};

}  // namespace

void Int8Avx2(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
