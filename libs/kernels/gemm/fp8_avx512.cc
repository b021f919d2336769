#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_avx512-inl.h"
#include "libs/kernels/gemm/fp8_fp32-inl.h"
#include "libs/kernels/gemm/fp8_nibbles-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

inline __m512i Table(const uint8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// The two bf16 of a 32-bit lane.
inline void StorePair(__m512i pair, float* even, float* odd) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  _mm512_store_si512(even, _mm512_slli_epi32(pair, 16));
  _mm512_store_si512(odd, _mm512_and_si512(pair, upper));
}

struct Unit {
  using Lanes = ::atelier::Lanes;
  static constexpr size_t kRowBlock = 8;
  static constexpr size_t kMostSums = 16;

  static void WidenQuad(const uint8_t* codes, float* to) {
    const __m512i quad = _mm512_load_si512(codes);
    const __m512i half = _mm512_set1_epi8(15);
    const __m512i lower = _mm512_and_si512(quad, half);
    const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(quad, 4), half);
    const __mmask64 small = _mm512_testn_epi8_mask(quad, _mm512_set1_epi8(0x70));
    const __m512i less = _mm512_maskz_shuffle_epi8(small, Table(kNibbleTables.less_high), lower);
    const __m512i flip = _mm512_maskz_shuffle_epi8(small, Table(kNibbleTables.flip_low), lower);
    const __m512i high =
        _mm512_sub_epi8(_mm512_shuffle_epi8(Table(kNibbleTables.high), upper), less);
    const __m512i low = _mm512_xor_si512(_mm512_slli_epi16(lower, 4), flip);
    StorePair(_mm512_unpacklo_epi8(low, high), to, to + 16);
    StorePair(_mm512_unpackhi_epi8(low, high), to + 32, to + 48);
  }

  static void WidenActivations(const uint8_t* at, float* to) {
    for (size_t i = 0; i < 32; i += 16) {
      const auto* from = reinterpret_cast<const __m256i*>(at + i * 2);
      const __m512i bits = _mm512_cvtepu16_epi32(_mm256_load_si256(from));
      _mm512_store_si512(to + i, _mm512_slli_epi32(bits, 16));
    }
  }
};

}  // namespace

extern constexpr Fp8Kernels kFp8Avx512Kernels = AllFp8Kernels<Fp32Isa<Unit>>();

}  // namespace atelier
