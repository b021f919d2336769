#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

inline __m256i LoadWeights(const uint8_t* at) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
}

// A 32-bit lane holds the bf16 of an even k below the one of an odd k; each becomes a float.
inline __m256 Even(__m256i pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
inline __m256 Odd(__m256i pair) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(pair, mask));
}

// One fp32 sum per element, fused, in ascending k: 4 rows x 2 halves of a panel fill the registers.
struct Tile {
  static constexpr int kRowBlock = 4;
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    __m256 sums[kRows][2];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (size_t g = 0; g < tile.groups; ++g) {
      const __m256i low = LoadWeights(tile.panel + g * kGroupStride);
      const __m256i high = LoadWeights(tile.panel + g * kGroupStride + 32);
      const __m256 weights[4] = {Even(low), Odd(low), Even(high), Odd(high)};
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        int32_t bits;
        __builtin_memcpy(&bits, tile.activations + r * tile.activation_stride + g * 4, 4);
        const __m256i pair = _mm256_set1_epi32(bits);
        const __m256 even = Even(pair);
        const __m256 odd = Odd(pair);
        sums[r][0] = _mm256_fmadd_ps(even, weights[0], sums[r][0]);
        sums[r][1] = _mm256_fmadd_ps(even, weights[2], sums[r][1]);
        sums[r][0] = _mm256_fmadd_ps(odd, weights[1], sums[r][0]);
        sums[r][1] = _mm256_fmadd_ps(odd, weights[3], sums[r][1]);
      }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(tile.out + r * tile.out_stride, sums[r][0]);
      _mm256_storeu_ps(tile.out + r * tile.out_stride + 8, sums[r][1]);
    }
  }
};

}  // namespace

void Bf16Avx2(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
