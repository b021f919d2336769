#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_kernel_list-inl.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The loop around the block kernels of 256-bit instruction sets. In an anonymous namespace, as
// panel_loop-inl.h.

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

// For AllBlockKernels.
template <typename Tile>
struct BlockIsa {
  template <BlockFormat kFormat>
  static void Gemm(const MicroKernelArgs& args) {
    BlockGemm<Tile, kFormat>(args);
  }
};

}  // namespace
}  // namespace atelier
