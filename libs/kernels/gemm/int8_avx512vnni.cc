#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/int8_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

// Two sums per element hide the latency of vpdpbusd when there is a single row; integers, so the
// split changes nothing.
struct Tile {
  static constexpr int kRowBlock = 8;
  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }

  // With several rows the loads of activations fill the load queue, so that few lines of weights
  // are on their way from memory: the panel that comes next is asked for meanwhile. One or two rows
  // are faster as one plain stream.
  template <int kRows>
  static void Compute(const TileArgs& tile) {
    if (kRows >= 4 && tile.prefetch) {
      Sum<kRows, true>(tile);
    } else {
      Sum<kRows, false>(tile);
    }
  }

  template <int kRows, bool kPrefetch>
  static void Sum(const TileArgs& tile) {
    __m512i sums[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = _mm512_set1_epi32(tile.row_offsets[r]);
      sums[r][1] = _mm512_setzero_si512();
    }
    for (size_t g = 0; g < tile.groups; g += 2) {
      const __m512i first = _mm512_load_si512(tile.panel + g * kGroupStride);
      const __m512i second = _mm512_load_si512(tile.panel + (g + 1) * kGroupStride);
      if constexpr (kPrefetch) {
        const uint8_t* next = tile.panel + (tile.groups + g) * kGroupStride;
        _mm_prefetch(next, _MM_HINT_T1);
        _mm_prefetch(next + kGroupStride, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const uint8_t* row = tile.activations + r * tile.activation_stride + g * 4;
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], first, _mm512_set1_epi32(LoadGroup(row)));
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], second, _mm512_set1_epi32(LoadGroup(row + 4)));
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      StoreScaled(tile, r, _mm512_add_epi32(sums[r][0], sums[r][1]));
    }
  }
};

}  // namespace

void Int8Avx512Vnni(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
