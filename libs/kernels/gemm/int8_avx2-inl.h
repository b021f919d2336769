#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/panel_loop-inl.h"

// What the vector int8 kernels share, in AVX2 instructions. In an anonymous namespace, as
// panel_loop-inl.h.

namespace atelier {
namespace {

// Weights are stored as code + 128, so a sum of u8 x s8 products is too large by 128 times the sum
// of the row's activations: kernels start from minus that. Modulo 2^32 throughout, hence exact.
inline int32_t Int8RowOffset(const uint8_t* row, size_t bytes) {
  const __m256i ones8 = _mm256_set1_epi8(1);
  const __m256i ones16 = _mm256_set1_epi16(1);
  __m256i sums = _mm256_setzero_si256();
  for (size_t i = 0; i < bytes; i += 32) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(ones8, codes), ones16));
  }
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return -128 * _mm_cvtsi128_si32(sum);
}

inline int32_t LoadGroup(const uint8_t* at) {
  int32_t group;
  __builtin_memcpy(&group, at, sizeof(group));
  return group;
}

// (sum * activation scale) * weight scale, the order of operations of every int8 kernel, for one
// half ("side") of a panel.
inline void StoreScaledSide(const TileArgs& tile, size_t row, size_t side, __m256i sums) {
  const __m256 scaled =
      _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(tile.activation_scales[row]));
  const __m256 row_scales = _mm256_loadu_ps(tile.row_scales + side * 8);
  _mm256_storeu_ps(tile.out + row * tile.out_stride + side * 8, _mm256_mul_ps(scaled, row_scales));
}

}  // namespace
}  // namespace atelier
