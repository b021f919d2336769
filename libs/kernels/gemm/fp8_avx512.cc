#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_avx512-inl.h"
#include "libs/kernels/gemm/fp8_fp32-inl.h"
#include "libs/kernels/gemm/fp8_widen_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

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
    const WidePairs pairs = ::atelier::WidenQuad(codes);
    StorePair(pairs.first, to, to + 16);
    StorePair(pairs.second, to + 32, to + 48);
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
