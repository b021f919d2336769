#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_pair_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

struct Dot {
  template <int kMaxCode>
  static __m512i Add(__m512i sums, __m512i codes, __m512i activations) {
    return _mm512_dpbusd_epi32(sums, codes, activations);
  }
};

}  // namespace

extern constexpr BlockKernels kBlockAvx512VnniKernels = AllBlockKernels<BlockIsa<Dot>>();

}  // namespace atelier
