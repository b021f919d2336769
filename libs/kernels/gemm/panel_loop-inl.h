#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"

// The loop around every micro-kernel: which rows meet which panel when. In an anonymous namespace,
// so each ISA file gets its own copy (see micro_kernel.h).

namespace atelier {
namespace {

constexpr size_t kGroupStride = 64;  // bytes from one group of 4 K-bytes to the next in a panel

// Rows that meet a panel while it is in the cache.
constexpr int kMaxChunkRows = 128;
// Several rows keep the load queue so full that few loads of weights are on their way: from so many
// rows of a chunk on, the next panel is asked for meanwhile. Fewer are faster as one plain stream.
constexpr int kMinPrefetchRows = 3;

// kRows consecutive rows times one panel.
struct TileArgs {
  const uint8_t* activations;
  size_t activation_stride;
  const float* activation_scales;  // of the first row
  const int32_t* row_offsets;      // Tile::RowOffset of each row
  const uint8_t* panel;
  size_t groups;            // a multiple of 16
  const uint8_t* prefetch;  // into L2, prefetch_step bytes for each group; null = nothing
  size_t prefetch_step;
  const float* row_scales;  // of the panel's 16 output rows
  float* out;
  size_t out_stride;
};

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
  tile.row_scales = args.row_scales == nullptr ? nullptr : args.row_scales + column;
  tile.out = args.out + row * args.out_stride + column;
  tile.out_stride = args.out_stride;
  return tile;
}

// Exactly `rows` <= kRows rows. Every number of rows adds the products of one element in the same
// order, so the cut changes no bit.
template <typename Tile, int kRows>
inline void ComputeRows(const TileArgs& tile, int rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ComputeRows<Tile, kRows - 1>(tile, rows);
  }
  Tile::template Compute<kRows>(tile);
}

// `rows` rows of a chunk times one panel, in blocks of nearly equal size: a block of few rows would
// wait for its own sums. Each block asks for its share of the next panel.
template <typename Tile>
inline void RunRowBlocks(TileArgs tile, int rows) {
  const int blocks = (rows + Tile::kRowBlock - 1) / Tile::kRowBlock;
  tile.prefetch_step = kGroupStride / static_cast<size_t>(blocks);
  for (int b = 0; b < blocks; ++b) {
    const int count = rows * (b + 1) / blocks - rows * b / blocks;
    ComputeRows<Tile, Tile::kRowBlock>(tile, count);
    const size_t done = static_cast<size_t>(count);
    tile.activations += done * tile.activation_stride;
    if (tile.activation_scales != nullptr) tile.activation_scales += done;
    tile.row_offsets += done;
    if (tile.prefetch != nullptr) tile.prefetch += tile.groups * tile.prefetch_step;
    tile.out += done * tile.out_stride;
  }
}

// Tile has kRowBlock, RowOffset(row bytes, number of bytes) and Compute<kRows>(TileArgs) for 1 …
// kRowBlock rows.
template <typename Tile>
inline void RunPanels(const MicroKernelArgs& args) {
  for (int first = 0; first < args.rows; first += kMaxChunkRows) {
    const int rows = args.rows - first < kMaxChunkRows ? args.rows - first : kMaxChunkRows;
    int32_t row_offsets[kMaxChunkRows];
    for (int r = 0; r < rows; ++r) {
      const uint8_t* row =
          args.activations + static_cast<size_t>(first + r) * args.activation_stride;
      row_offsets[r] = Tile::RowOffset(row, args.padded_k_bytes);
    }
    for (int panel = 0; panel < args.num_panels; ++panel) {
      TileArgs tile = FirstTile(args, panel, first, row_offsets);
      const bool prefetch = rows >= kMinPrefetchRows && panel + 1 < args.num_panels;
      tile.prefetch = prefetch ? tile.panel + args.panel_bytes : nullptr;
      RunRowBlocks<Tile>(tile, rows);
    }
  }
}

}  // namespace
}  // namespace atelier
