#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The loop around the block kernels of 256-bit instruction sets, and the list of their codings. In
// an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

// Activation rows that stay in L2 while all panels pass over them.
constexpr size_t kBlockChunkBytes = 256 * 1024;

// Blocks of kRows rows while there are enough left, then smaller ones.
template <typename Tile, BlockFormat kFormat, int kRows>
inline void ComputeRows(const MicroKernelArgs& args, int panel, size_t begin, size_t end) {
  const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  float* out = args.out + static_cast<size_t>(panel) * 16;
  for (; end - begin >= kRows; begin += kRows) {
    Tile::template Compute<kFormat, kRows>(args, weights, begin, out + begin * args.out_stride);
  }
  if constexpr (kRows > 1) {
    if (begin < end) ComputeRows<Tile, kFormat, kRows / 2>(args, panel, begin, end);
  }
}

// Tile has kRowBlock (a power of two) and Compute<kFormat, kRows>(args, panel, first row, out).
template <typename Tile, BlockFormat kFormat>
void BlockGemm(const MicroKernelArgs& args) {
  constexpr size_t kRowBlock = Tile::kRowBlock;
  const size_t rows = static_cast<size_t>(args.rows);
  size_t chunk = kBlockChunkBytes / args.activation_stride / kRowBlock * kRowBlock;
  if (chunk < kRowBlock) chunk = kRowBlock;
  for (size_t begin = 0; begin < rows; begin += chunk) {
    const size_t end = rows - begin < chunk ? rows : begin + chunk;
    for (int panel = 0; panel < args.num_panels; ++panel) {
      ComputeRows<Tile, kFormat, Tile::kRowBlock>(args, panel, begin, end);
    }
  }
}

// A kernel of every coding; Q4_0's is INT4's.
template <typename Tile>
constexpr BlockKernel kBlockKernels[] = {
    {kInt4G32Format, BlockGemm<Tile, kInt4G32Format>},
    {kInt4G64Format, BlockGemm<Tile, kInt4G64Format>},
    {kInt4G128Format, BlockGemm<Tile, kInt4G128Format>},
    {kInt4G32ZFormat, BlockGemm<Tile, kInt4G32ZFormat>},
    {kInt4G64ZFormat, BlockGemm<Tile, kInt4G64ZFormat>},
    {kInt4G128ZFormat, BlockGemm<Tile, kInt4G128ZFormat>},
    {kMxFp4Format, BlockGemm<Tile, kMxFp4Format>},
    {kQ8_0Format, BlockGemm<Tile, kQ8_0Format>},
    {kQ4_1Format, BlockGemm<Tile, kQ4_1Format>},
    {kQ5_0Format, BlockGemm<Tile, kQ5_0Format>},
    {kQ5_1Format, BlockGemm<Tile, kQ5_1Format>},
    {kQ2_KFormat, BlockGemm<Tile, kQ2_KFormat>},
    {kQ3_KFormat, BlockGemm<Tile, kQ3_KFormat>},
    {kQ4_KFormat, BlockGemm<Tile, kQ4_KFormat>},
    {kQ5_KFormat, BlockGemm<Tile, kQ5_KFormat>},
    {kQ6_KFormat, BlockGemm<Tile, kQ6_KFormat>},
    {kIq4NlFormat, BlockGemm<Tile, kIq4NlFormat>},
    {kIq4XsFormat, BlockGemm<Tile, kIq4XsFormat>},
};

template <typename Tile>
constexpr BlockKernels AllBlockKernels() {
  return {kBlockKernels<Tile>,
          kBlockKernels<Tile> + sizeof(kBlockKernels<Tile>) / sizeof(BlockKernel)};
}

}  // namespace
}  // namespace atelier
