#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/panel_loop-inl.h"
#include "libs/kernels/gemm/row_cursor-inl.h"

// The tile of every AVX-512 kernel of BF16 and INT8: rows times one panel, one sum per element. In
// an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

// Four bytes of an activation row (two bf16 or four int8) for all output rows.
inline __m512i BroadcastGroup(const uint8_t* at) {
  int32_t group;
  __builtin_memcpy(&group, at, sizeof(group));
  return _mm512_set1_epi32(group);
}

// Dot has Sum (of the 16 output rows of one activation row), Weights (a group of them as it wants
// them), Start(tile, row), Prepare(64 bytes of the panel), Add(sum, weights, activations) and
// Store(tile, row, sum).
template <typename Dot>
struct Avx512Tile {
  static constexpr int kRowBlock = 16;  // their sums leave half of the registers

  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Dot::RowOffset(row, bytes); }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    if (tile.prefetch == nullptr) {
      Sum<kRows, false>(tile);
    } else {
      Sum<kRows, true>(tile);
    }
  }

 private:
  template <size_t kRows, bool kPrefetch>
  static void Sum(const TileArgs& tile) {
    typename Dot::Sum sums[kRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) sums[r] = Dot::Start(tile, r);
    RowCursor<kRows> rows(tile.activations, tile.activation_stride);
    const uint8_t* prefetch = tile.prefetch;
    for (size_t g = 0; g < tile.groups; g += kUnroll) {
#pragma GCC unroll 2
      for (size_t u = 0; u < kUnroll; ++u) {
        if constexpr (kPrefetch) {
          _mm_prefetch(prefetch, _MM_HINT_T1);
          prefetch += tile.prefetch_step;
        }
        const auto weights = Dot::Prepare(_mm512_load_si512(tile.panel + (g + u) * kGroupStride));
#pragma GCC unroll 16
        for (size_t r = 0; r < kRows; ++r) {
          sums[r] = Dot::Add(sums[r], weights, BroadcastGroup(rows.At(r) + u * 4));
        }
      }
      rows.Advance(kUnroll * 4);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) Dot::Store(tile, r, sums[r]);
  }

  static constexpr size_t kUnroll = 2;
};

}  // namespace
}  // namespace atelier
