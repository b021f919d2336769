#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_fp32-inl.h"
#include "libs/kernels/gemm/fp8_nibbles-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

struct Vectors {
  using Floats = __m256;
  static constexpr size_t kWidth = 8;
  static Floats Zero() { return _mm256_setzero_ps(); }
  static Floats Load(const float* at) { return _mm256_load_ps(at); }
  static Floats Broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static void Store(float* at, Floats values) { _mm256_store_ps(at, values); }
  static Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats Multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  // 2^(e - 127): e in the exponent field; 0 is subnormal, 255 is NaN.
  static Floats GroupScales(const uint8_t* at) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    const __m256i zero = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
    const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    __m256i bits = _mm256_slli_epi32(e, 23);
    bits = _mm256_or_si256(bits, _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000)));
    bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(0x00400000)));
    return _mm256_castsi256_ps(bits);
  }
};

inline __m256i Table(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

inline void StoreInts(float* to, __m256i bits) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), bits);
}

// The two bf16 of a 32-bit lane.
inline void StorePair(__m256i pair, float* even, float* odd) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
  StoreInts(even, _mm256_slli_epi32(pair, 16));
  StoreInts(odd, _mm256_and_si256(pair, upper));
}

struct Unit {
  using Lanes = Vectors;
  static constexpr size_t kRowBlock = 4;
  static constexpr size_t kMostSums = 8;

  static void WidenQuad(const uint8_t* codes, float* to) {
    WidenSide(codes, to);
    WidenSide(codes + 32, to + 8);
  }

  static void WidenActivations(const uint8_t* at, float* to) {
    for (size_t i = 0; i < 32; i += 8) {
      const auto* from = reinterpret_cast<const __m128i*>(at + i * 2);
      const __m256i bits = _mm256_cvtepu16_epi32(_mm_load_si128(from));
      StoreInts(to + i, _mm256_slli_epi32(bits, 16));
    }
  }

 private:
  // The codes of 4 k of 8 columns.
  static void WidenSide(const uint8_t* codes, float* to) {
    const __m256i quad = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i half = _mm256_set1_epi8(15);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(quad, 4), half);
    // The lower half where the upper is zero but for the sign; else bit 7 is set and vpshufb gives
    // 0.
    const __m256i magnitude = _mm256_and_si256(quad, _mm256_set1_epi8(0x7f));
    const __m256i small = _mm256_add_epi8(magnitude, _mm256_set1_epi8(0x70));
    const __m256i less = _mm256_shuffle_epi8(Table(kNibbleTables.less_high), small);
    const __m256i flip = _mm256_shuffle_epi8(Table(kNibbleTables.flip_low), small);
    const __m256i high =
        _mm256_sub_epi8(_mm256_shuffle_epi8(Table(kNibbleTables.high), upper), less);
    const __m256i moved = _mm256_slli_epi16(_mm256_and_si256(quad, half), 4);
    const __m256i low = _mm256_xor_si256(moved, flip);
    StorePair(_mm256_unpacklo_epi8(low, high), to, to + 16);
    StorePair(_mm256_unpackhi_epi8(low, high), to + 32, to + 48);
  }
};

}  // namespace

extern constexpr Fp8Kernels kFp8Avx2Kernels = AllFp8Kernels<Fp32Isa<Unit>>();

}  // namespace atelier
