#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

// Sums of even and of odd groups apart hide the latency of vpdpbusd when there are few rows;
// integers, so the split changes nothing. Four rows have chains enough.
template <int kRows>
constexpr size_t kChains = kRows < 4 ? 2 : 1;

struct Tile {
  static constexpr int kRowBlock = 4;
  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    __m256i sums[kRows][2][2];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      sums[r][0][0] = sums[r][0][1] = _mm256_set1_epi32(tile.row_offsets[r]);
      sums[r][1][0] = sums[r][1][1] = _mm256_setzero_si256();
    }
    for (size_t g = 0; g < tile.groups; g += kChains<kRows>) {
#pragma GCC unroll 2
      for (size_t chain = 0; chain < kChains<kRows>; ++chain) {
        AddGroup<kRows>(tile, g + chain, chain, sums);
      }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (size_t side = 0; side < 2; ++side) {
        StoreScaledSide(tile, r, side, _mm256_add_epi32(sums[r][0][side], sums[r][1][side]));
      }
    }
  }

 private:
  template <int kRows>
  static void AddGroup(const TileArgs& tile, size_t g, size_t chain, __m256i (&sums)[kRows][2][2]) {
    const auto* weights = reinterpret_cast<const __m256i*>(tile.panel + g * kGroupStride);
    const __m256i low = _mm256_load_si256(weights);
    const __m256i high = _mm256_load_si256(weights + 1);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i codes =
          _mm256_set1_epi32(LoadGroup(tile.activations + r * tile.activation_stride + g * 4));
      sums[r][chain][0] = _mm256_dpbusd_avx_epi32(sums[r][chain][0], low, codes);
      sums[r][chain][1] = _mm256_dpbusd_avx_epi32(sums[r][chain][1], high, codes);
    }
  }
};

}  // namespace

void Int8AvxVnni(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
