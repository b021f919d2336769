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

}  // namespace

template <BlockFormat kFormat>
void BlockAvx512Vnni(const MicroKernelArgs& args) {
  BlockGemm<Dot, kFormat>(args);
}

template void BlockAvx512Vnni<kInt4G32Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kInt4G64Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kInt4G128Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kInt4G32ZFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kInt4G64ZFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kInt4G128ZFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kMxFp4Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ8_0Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ4_1Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ5_0Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ5_1Format>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ2_KFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ3_KFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ4_KFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ5_KFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kQ6_KFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kIq4NlFormat>(const MicroKernelArgs&);
template void BlockAvx512Vnni<kIq4XsFormat>(const MicroKernelArgs&);

}  // namespace atelier
