#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"

// The loop around every micro-kernel: which rows meet which panel when. In an anonymous namespace,
// so each ISA file gets its own copy (see micro_kernel.h).

namespace atelier {
namespace {

constexpr size_t kGroupStride = 64;  // bytes from one group of 4 K-bytes to the next in a panel

// Activation rows that stay in L2, with a panel, while all panels pass over them.
constexpr size_t kChunkBytes = 256 * 1024;
constexpr int kMaxChunkRows = 128;

// kRows consecutive rows times one panel.
struct TileArgs {
  const uint8_t* activations;
  size_t activation_stride;
  const float* activation_scales;  // of the first row
  const int32_t* row_offsets;      // Tile::RowOffset of each row
  const uint8_t* panel;
  size_t groups;            // a multiple of 16
  bool prefetch;            // this block is the one that fetches the next panel into L2
  const float* row_scales;  // of the panel's 16 output rows
  float* out;
  size_t out_stride;
};

inline int ChunkRows(size_t stride) {
  const size_t rows = stride == 0 ? kMaxChunkRows : kChunkBytes / stride / 8 * 8;
  if (rows < 8) return 8;
  return rows > kMaxChunkRows ? kMaxChunkRows : static_cast<int>(rows);
}

inline TileArgs FirstTile(const MicroKernelArgs& args, int panel, int first_row,
                          const int32_t* row_offsets) {
  const size_t row = static_cast<size_t>(first_row);
  const size_t column = static_cast<size_t>(panel) * 16;
  TileArgs tile{};
  tile.activations = args.activations + row * args.activation_stride;
  tile.activation_stride = args.activation_stride;
  tile.activation_scales =
      args.activation_scales == nullptr ? nullptr : args.activation_scales + row;
  tile.row_offsets = row_offsets;
  tile.panel = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  tile.groups = args.padded_k_bytes / 4;
  tile.prefetch = true;
  tile.row_scales = args.row_scales == nullptr ? nullptr : args.row_scales + column;
  tile.out = args.out + row * args.out_stride + column;
  tile.out_stride = args.out_stride;
  return tile;
}

// Blocks of kRows rows while there are enough left, then smaller ones. Every block size adds the
// products of one element in the same order, so the cut changes no bit.
template <typename Tile, int kRows>
inline void RunRowBlocks(TileArgs tile, int rows) {
  for (; rows >= kRows; rows -= kRows) {
    Tile::template Compute<kRows>(tile);
    tile.activations += kRows * tile.activation_stride;
    if (tile.activation_scales != nullptr) tile.activation_scales += kRows;
    tile.row_offsets += kRows;
    tile.out += kRows * tile.out_stride;
    tile.prefetch = false;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) RunRowBlocks<Tile, kRows / 2>(tile, rows);
  }
}

// Tile has kRowBlock (a power of two), RowOffset(row bytes, number of bytes) and
// Compute<kRows>(TileArgs).
template <typename Tile>
inline void RunPanels(const MicroKernelArgs& args) {
  const int chunk = ChunkRows(args.activation_stride);
  for (int first = 0; first < args.rows; first += chunk) {
    const int rows = args.rows - first < chunk ? args.rows - first : chunk;
    int32_t row_offsets[kMaxChunkRows];
    for (int r = 0; r < rows; ++r) {
      const uint8_t* row =
          args.activations + static_cast<size_t>(first + r) * args.activation_stride;
      row_offsets[r] = Tile::RowOffset(row, args.padded_k_bytes);
    }
    for (int panel = 0; panel < args.num_panels; ++panel) {
      RunRowBlocks<Tile, Tile::kRowBlock>(FirstTile(args, panel, first, row_offsets), rows);
    }
  }
}

}  // namespace
}  // namespace atelier
