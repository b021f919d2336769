#pragma once

#include "libs/kernels/gemm/block_format.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The codings that every instruction set has a block kernel of. In an anonymous namespace, as
// panel_loop-inl.h.

namespace atelier {
namespace {

// Isa::Gemm<kFormat>(args) is the kernel; Q4_0's is INT4's.
template <typename Isa>
constexpr BlockKernel kBlockKernels[] = {
    {kInt4G32Format, Isa::template Gemm<kInt4G32Format>},
    {kInt4G64Format, Isa::template Gemm<kInt4G64Format>},
    {kInt4G128Format, Isa::template Gemm<kInt4G128Format>},
    {kInt4G32ZFormat, Isa::template Gemm<kInt4G32ZFormat>},
    {kInt4G64ZFormat, Isa::template Gemm<kInt4G64ZFormat>},
    {kInt4G128ZFormat, Isa::template Gemm<kInt4G128ZFormat>},
    {kMxFp4Format, Isa::template Gemm<kMxFp4Format>},
    {kQ8_0Format, Isa::template Gemm<kQ8_0Format>},
    {kQ4_1Format, Isa::template Gemm<kQ4_1Format>},
    {kQ5_0Format, Isa::template Gemm<kQ5_0Format>},
    {kQ5_1Format, Isa::template Gemm<kQ5_1Format>},
    {kQ2_KFormat, Isa::template Gemm<kQ2_KFormat>},
    {kQ3_KFormat, Isa::template Gemm<kQ3_KFormat>},
    {kQ4_KFormat, Isa::template Gemm<kQ4_KFormat>},
    {kQ5_KFormat, Isa::template Gemm<kQ5_KFormat>},
    {kQ6_KFormat, Isa::template Gemm<kQ6_KFormat>},
    {kIq4NlFormat, Isa::template Gemm<kIq4NlFormat>},
    {kIq4XsFormat, Isa::template Gemm<kIq4XsFormat>},
};

template <typename Isa>
constexpr BlockKernels AllBlockKernels() {
  return {kBlockKernels<Isa>,
          kBlockKernels<Isa> + sizeof(kBlockKernels<Isa>) / sizeof(BlockKernel)};
}

}  // namespace
}  // namespace atelier
