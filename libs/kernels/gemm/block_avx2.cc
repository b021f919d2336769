#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_avx2-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

// vpmaddubsw adds two products in 16 bits and saturates, so what is added there is bounded: with
// activations of at most 127, two products are at most 254 times the largest code.
constexpr int kMostInSum = 32767;

// How many quads fit 16 bits, a power of two of at most `quads`.
constexpr int QuadsInSum(int max_code, int quads) {
  int count = quads;
  while (count > 1 && count * 254 * max_code > kMostInSum) count /= 2;
  return count;
}

struct Dot {
  // Codes above 128 could saturate; as signed bytes their magnitude is at most 128.
  template <int kMaxCode>
  static constexpr bool kSigned = kMaxCode > 128;

  struct Sum {
    __m256i quads;  // 16 int16: quads that are not in the total yet
    __m256i total;  // 8 int32
  };
  static __m256i Total(const Sum& sum) { return sum.total; }

  template <int kMaxCode>
  static __m256i Products(__m256i codes, __m256i activations) {
    if constexpr (!kSigned<kMaxCode>) return _mm256_maddubs_epi16(codes, activations);
    // The sign moves to the activations, which have no -128 that could not take it.
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes));
  }

  // Quad kQuad of kQuads that are added before the total is read.
  template <int kMaxCode, int kQuad, int kQuads>
  static void Add(Sum& sum, __m256i codes, __m256i activations) {
    constexpr int kInSum = QuadsInSum(kSigned<kMaxCode> ? 128 : kMaxCode, kQuads);
    static_assert(kInSum * 254 * (kSigned<kMaxCode> ? 128 : kMaxCode) <= kMostInSum);
    const __m256i products = Products<kMaxCode>(codes, activations);
    sum.quads = kQuad % kInSum == 0 ? products : _mm256_add_epi16(sum.quads, products);
    if constexpr (kQuad % kInSum == kInSum - 1) {
      const __m256i pairs = _mm256_madd_epi16(sum.quads, _mm256_set1_epi16(1));
      sum.total = _mm256_add_epi32(sum.total, pairs);
    }
  }
};

}  // namespace

extern constexpr BlockKernels kBlockAvx2Kernels = AllBlockKernels<BlockIsa<BlockTiles<Dot>>>();

}  // namespace atelier
