#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

struct Dot {
  template <int kMaxCode>
  static __m512i Add(__m512i sums, __m512i codes, __m512i activations) {
    return _mm512_dpbusd_epi32(sums, codes, activations);
  }
};

template <BlockFormat kFormat>
void Run(const MicroKernelArgs& args) {
  BlockGemm<Dot, kFormat>(args);
}

}  // namespace

// Data, not functions: choosing a kernel must not run code of this instruction set.
extern const BlockKernel kBlockAvx512VnniKernels[] = {
    {kInt4G32Format, Run<kInt4G32Format>},
    {kInt4G64Format, Run<kInt4G64Format>},
    {kInt4G128Format, Run<kInt4G128Format>},
    {kInt4G32ZFormat, Run<kInt4G32ZFormat>},
    {kInt4G64ZFormat, Run<kInt4G64ZFormat>},
    {kInt4G128ZFormat, Run<kInt4G128ZFormat>},
    {kMxFp4Format, Run<kMxFp4Format>},
    {kQ8_0Format, Run<kQ8_0Format>},
    {kQ4_1Format, Run<kQ4_1Format>},
    {kQ5_0Format, Run<kQ5_0Format>},
    {kQ5_1Format, Run<kQ5_1Format>},
    {kQ2_KFormat, Run<kQ2_KFormat>},
    {kQ3_KFormat, Run<kQ3_KFormat>},
    {kQ4_KFormat, Run<kQ4_KFormat>},
    {kQ5_KFormat, Run<kQ5_KFormat>},
    {kQ6_KFormat, Run<kQ6_KFormat>},
    {kIq4NlFormat, Run<kIq4NlFormat>},
    {kIq4XsFormat, Run<kIq4XsFormat>},
    {{}, nullptr},
};

}  // namespace atelier
