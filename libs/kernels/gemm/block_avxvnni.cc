#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_avx2-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

struct Dot {
  template <int kMaxCode>
  static constexpr bool kSigned = false;

  using Sum = __m256i;  // 8 int32
  static __m256i Total(const Sum& sum) { return sum; }

  template <int kMaxCode, int kQuad, int kQuads>
  static void Add(Sum& sum, __m256i codes, __m256i activations) {
    sum = _mm256_dpbusd_avx_epi32(sum, codes, activations);
  }
};

}  // namespace

extern constexpr BlockKernels kBlockAvxVnniKernels = AllBlockKernels<BlockIsa<BlockTiles<Dot>>>();

}  // namespace atelier
