#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_layout-inl.h"

// Scales and mins of 8 of a panel's 16 output rows, in AVX2. In an anonymous namespace, as
// panel_loop-inl.h.

namespace atelier {
namespace {

// Where one block of a panel lies.
struct BlockView {
  const uint8_t* header;
  const uint8_t* codes;
  size_t groups;  // of 32 k
  bool bf16_scales;
};

inline __m256i UnsignedInts(const uint8_t* at) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
inline __m256 UnsignedBytes(const uint8_t* at) { return _mm256_cvtepi32_ps(UnsignedInts(at)); }
inline __m256 SignedBytes(const uint8_t* at) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
inline __m256 Halves(const uint8_t* at, bool bf16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if (bf16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  return _mm256_cvtph_ps(bits);
}

// 2^(e - 128): e - 1 in the exponent field; 0 and 1 are subnormal, 255 is NaN.
inline __m256 Exponents(const uint8_t* at) {
  const __m256i e = UnsignedInts(at);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
  const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
  const __m256i finite = _mm256_blendv_epi8(normal, subnormal, small);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(finite, _mm256_set1_epi32(0x7fc00000), nan));
}

// Scales of group j of output rows 8 side … 8 side + 7.
template <BlockFormat kFormat>
inline __m256 ScalesOf(const BlockView& block, size_t j, size_t side) {
  const uint8_t* at = block.header + ScalesOffset(kFormat) + j * ScaleStride(kFormat);
  const uint8_t* super = block.header + side * 16;
  if constexpr (kFormat.scale == ScaleCoding::kHalf) {
    return Halves(at + side * 16, block.bf16_scales);
  }
  if constexpr (kFormat.scale == ScaleCoding::kE8M0) return Exponents(at + side * 8);
  if constexpr (kFormat.scale == ScaleCoding::kSuperU) {
    return _mm256_mul_ps(Halves(super, false), UnsignedBytes(at + side * 8));
  }
  if constexpr (kFormat.scale == ScaleCoding::kSuperS) {
    return _mm256_mul_ps(Halves(super, false), SignedBytes(at + side * 8));
  }
  if constexpr (kFormat.scale == ScaleCoding::kSuperNibble) {
    const __m256i low = _mm256_and_si256(UnsignedInts(at + side * 8), _mm256_set1_epi32(15));
    return _mm256_mul_ps(Halves(super, false), _mm256_cvtepi32_ps(low));
  }
}

// What is added per sum of activations of group j; `scales` are those of the group.
template <BlockFormat kFormat>
inline __m256 MinsOf(const BlockView& block, size_t j, size_t side, __m256 scales) {
  const uint8_t* at = block.header + MinsOffset(kFormat, block.groups) + j * MinStride(kFormat);
  const uint8_t* super = block.header + SuperMinOffset(kFormat) + side * 16;
  const __m256 zero = _mm256_setzero_ps();
  if constexpr (kFormat.min == MinCoding::kHalf) return Halves(at + side * 16, block.bf16_scales);
  if constexpr (kFormat.min == MinCoding::kZeroCode) {
    return _mm256_sub_ps(zero, _mm256_mul_ps(scales, UnsignedBytes(at + side * 8)));
  }
  if constexpr (kFormat.min == MinCoding::kSuperU) {
    return _mm256_sub_ps(zero, _mm256_mul_ps(Halves(super, false), UnsignedBytes(at + side * 8)));
  }
  if constexpr (kFormat.min == MinCoding::kSuperNibble) {
    const uint8_t* both = block.header + ScalesOffset(kFormat) + j * ScaleStride(kFormat);
    const __m256i high = _mm256_srli_epi32(UnsignedInts(both + side * 8), 4);
    return _mm256_sub_ps(zero, _mm256_mul_ps(Halves(super, false), _mm256_cvtepi32_ps(high)));
  }
  return zero;
}

}  // namespace
}  // namespace atelier
