#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

inline __m512bh Broadcast(const uint8_t* at) {
  int32_t bits;
  __builtin_memcpy(&bits, at, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

inline __m512bh LoadWeights(const uint8_t* at) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(at));
}

// Two fp32 sums per element: groups of even and of odd index, each ascending, added at the end; one
// chain alone would wait for the latency of vdpbf16ps when there is a single row.
struct Tile {
  static constexpr int kRowBlock = 8;
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

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
    __m512 sums[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (size_t g = 0; g < tile.groups; g += 2) {
      const __m512bh first = LoadWeights(tile.panel + g * kGroupStride);
      const __m512bh second = LoadWeights(tile.panel + (g + 1) * kGroupStride);
      if constexpr (kPrefetch) {
        const uint8_t* next = tile.panel + (tile.groups + g) * kGroupStride;
        _mm_prefetch(next, _MM_HINT_T1);
        _mm_prefetch(next + kGroupStride, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const uint8_t* row = tile.activations + r * tile.activation_stride + g * 4;
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], first, Broadcast(row));
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], second, Broadcast(row + 4));
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(tile.out + r * tile.out_stride, _mm512_add_ps(sums[r][0], sums[r][1]));
    }
  }
};

}  // namespace

void Bf16Avx512Bf16(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
