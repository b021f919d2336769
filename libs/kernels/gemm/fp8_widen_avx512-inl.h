#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_nibbles-inl.h"

// E4M3 to bf16 with the shuffles of AVX-512 BW. In an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

inline __m512i NibbleTable(const uint8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Two pairs of k; the bf16 of a column's pair share a 32-bit lane.
struct WidePairs {
  __m512i first, second;
};

// A quad of k of 16 columns, as it lies in a panel.
inline WidePairs WidenQuad(const uint8_t* codes) {
  const __m512i quad = _mm512_load_si512(codes);
  const __m512i half = _mm512_set1_epi8(15);
  const __m512i lower = _mm512_and_si512(quad, half);
  const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(quad, 4), half);
  const __mmask64 small = _mm512_testn_epi8_mask(quad, _mm512_set1_epi8(0x70));
  const __m512i less =
      _mm512_maskz_shuffle_epi8(small, NibbleTable(kNibbleTables.less_high), lower);
  const __m512i flip = _mm512_maskz_shuffle_epi8(small, NibbleTable(kNibbleTables.flip_low), lower);
  const __m512i high =
      _mm512_sub_epi8(_mm512_shuffle_epi8(NibbleTable(kNibbleTables.high), upper), less);
  const __m512i low = _mm512_xor_si512(_mm512_slli_epi16(lower, 4), flip);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

}  // namespace
}  // namespace atelier
