#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

inline __m512i AddPairs(__m512i sums, __m512i codes, __m512i activations) {
  const __m512i pairs = _mm512_maddubs_epi16(codes, activations);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

struct Dot {
  // vpmaddubsw saturates where two products may exceed int16: codes above 128 are added in two
  // parts that cannot.
  template <int kMaxCode>
  static __m512i Add(__m512i sums, __m512i codes, __m512i activations) {
    if constexpr (kMaxCode <= 128) return AddPairs(sums, codes, activations);
    const __m512i low = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const __m512i high = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
    return AddPairs(AddPairs(sums, low, activations), high, activations);
  }
};

}  // namespace

template <BlockFormat kFormat>
void BlockAvx512(const MicroKernelArgs& args) {
  BlockGemm<Dot, kFormat>(args);
}

template void BlockAvx512<kInt4G32Format>(const MicroKernelArgs&);
template void BlockAvx512<kInt4G64Format>(const MicroKernelArgs&);
template void BlockAvx512<kInt4G128Format>(const MicroKernelArgs&);
template void BlockAvx512<kInt4G32ZFormat>(const MicroKernelArgs&);
template void BlockAvx512<kInt4G64ZFormat>(const MicroKernelArgs&);
template void BlockAvx512<kInt4G128ZFormat>(const MicroKernelArgs&);
template void BlockAvx512<kMxFp4Format>(const MicroKernelArgs&);
template void BlockAvx512<kQ8_0Format>(const MicroKernelArgs&);
template void BlockAvx512<kQ4_1Format>(const MicroKernelArgs&);
template void BlockAvx512<kQ5_0Format>(const MicroKernelArgs&);
template void BlockAvx512<kQ5_1Format>(const MicroKernelArgs&);
template void BlockAvx512<kQ2_KFormat>(const MicroKernelArgs&);
template void BlockAvx512<kQ3_KFormat>(const MicroKernelArgs&);
template void BlockAvx512<kQ4_KFormat>(const MicroKernelArgs&);
template void BlockAvx512<kQ5_KFormat>(const MicroKernelArgs&);
template void BlockAvx512<kQ6_KFormat>(const MicroKernelArgs&);
template void BlockAvx512<kIq4NlFormat>(const MicroKernelArgs&);
template void BlockAvx512<kIq4XsFormat>(const MicroKernelArgs&);

}  // namespace atelier
