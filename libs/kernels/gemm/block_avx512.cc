#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_pair_avx512-inl.h"
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

extern constexpr BlockKernels kBlockAvx512Kernels = AllBlockKernels<BlockIsa<Dot>>();

}  // namespace atelier
