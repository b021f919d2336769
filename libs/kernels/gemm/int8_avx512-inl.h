#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

// What the AVX-512 int8 kernels do before and after the products. In an anonymous namespace, as
// panel_loop-inl.h.

namespace atelier {
namespace {

// (sum * activation scale) * weight scale: the order of operations of every int8 kernel.
inline __m512 Scaled(__m512i sums, float activation_scale, const float* row_scales) {
  const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(activation_scale));
  return _mm512_mul_ps(scaled, _mm512_loadu_ps(row_scales));
}

struct Int8Sums {
  using Sum = __m512i;

  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }
  static Sum Start(const TileArgs& tile, size_t row) {
    return _mm512_set1_epi32(tile.row_offsets[row]);
  }
  static void Store(const TileArgs& tile, size_t row, Sum sum) {
    _mm512_storeu_ps(tile.out + row * tile.out_stride,
                     Scaled(sum, tile.activation_scales[row], tile.row_scales));
  }
};

}  // namespace
}  // namespace atelier
