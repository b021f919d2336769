#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"

// AMX tiles and the loop around the tile kernels. In an anonymous namespace, as panel_loop-inl.h.
//
// Eight tiles: four accumulators, two of activations (A), two of weights (B). More than 16 rows use
// them as 2 x 2, up to 16 rows as 1 x 4; either way four independent sums hide the latency of a
// product, and 2 x 2 needs the fewest loads that eight tiles allow (docs/performance.md). A tile of
// weights is 16 groups of a panel, 1024 bytes in a row.

namespace atelier {
namespace {

constexpr int kTileRows = 16;
constexpr size_t kTileRowBytes = 64;
constexpr size_t kWeightTileBytes = kTileRows * kTileRowBytes;
constexpr int kAmxBlockRows = 2 * kTileRows;
constexpr int kAccumulators = 4;  // tiles 0 to 3
constexpr int kTileA = 4;         // and 5
constexpr int kTileB = 6;         // and 7

// Activation rows that stay in L2 (2 MiB on every CPU with AMX) while all panels pass over them.
constexpr size_t kAmxChunkBytes = 1024 * 1024;
constexpr int kAmxMaxChunkRows = 128;
// Tiles of K of two panels that stay in L1 while the blocks of rows pass over them: 32 KiB of 48.
constexpr size_t kAmxChunkSteps = 16;

// The 64 bytes of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Our own wrappers: those of g++ 12 do not tell the compiler which memory they read.
inline void LoadTileConfig(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void ReleaseTiles() { __asm__ volatile("tilerelease" ::: "memory"); }
template <int kTile>
inline void ZeroTile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void LoadTile(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void StoreTile(void* to, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

// Up to 32 rows times 1 to 4 panels, for some of the tiles of K.
struct AmxBlock {
  const uint8_t* activations;
  size_t activation_stride;
  const float* activation_scales;  // of the first row
  const int32_t* row_offsets;      // Kernel::RowOffset of each row
  int rows;                        // 1 to 32
  const uint8_t* panels;
  size_t panel_bytes;
  size_t steps;             // tiles of K
  bool resume;              // the sums of the tiles of K before are in `out`
  const float* row_scales;  // of the first panel's 16 output rows
  float* out;
  size_t out_stride;
};

// Reloads the configuration when the shape of the tiles changes. No destructor releases the tiles:
// it would be a weak symbol of the exception handling (micro_kernel.h).
class Tiles {
 public:
  // For products of `rows` rows and `k_bytes` bytes of K. REQUIRES: 1 <= rows <= 32; k_bytes, which
  // is the same in all calls, is a multiple of 4 up to 64.
  void Configure(int rows, size_t k_bytes) {
    if (rows == rows_) return;
    rows_ = rows;
    const int upper = rows > kTileRows ? kTileRows : rows;
    const int lower = rows - upper;
    config_.palette = 1;
    // Accumulators 0 and 1 belong to the upper rows; 2 and 3 too when there are no lower ones.
    for (int tile = 0; tile < kAccumulators; ++tile) {
      SetShape(tile, tile < 2 || lower == 0 ? upper : lower, kTileRowBytes);
    }
    SetShape(kTileA, upper, k_bytes);
    SetShape(kTileA + 1, lower == 0 ? upper : lower, k_bytes);
    SetShape(kTileB, static_cast<int>(k_bytes / 4), kTileRowBytes);
    SetShape(kTileB + 1, static_cast<int>(k_bytes / 4), kTileRowBytes);
    LoadTileConfig(config_);
  }

 private:
  void SetShape(int tile, int rows, size_t row_bytes) {
    config_.rows[tile] = static_cast<uint8_t>(rows);
    config_.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }

  TileConfig config_{};
  int rows_ = 0;
};

// The products of kernels whose operands are bf16 (docs/numerics.md: the order of additions).
struct Bf16Products {
  template <int kAccumulator, int kA, int kB>
  static void Multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kAccumulator), "i"(kA),
                     "i"(kB));
  }
};

// The accumulators of panel kPanel and all after it: zero, or as they were left in `out`.
template <int kRowTiles, int kPanels, int kPanel = 0>
inline void StartSums(const AmxBlock& block) {
  const size_t stride = block.out_stride * sizeof(float);
  const float* sums = block.out + kPanel * 16;
  if (block.resume) {
    LoadTile<kPanel>(sums, stride);
    if constexpr (kRowTiles == 2) LoadTile<2 + kPanel>(sums + kTileRows * block.out_stride, stride);
  } else {
    ZeroTile<kPanel>();
    if constexpr (kRowTiles == 2) ZeroTile<2 + kPanel>();
  }
  if constexpr (kPanel + 1 < kPanels) StartSums<kRowTiles, kPanels, kPanel + 1>(block);
}

template <int kRowTiles, int kPanels, int kPanel = 0>
inline void StoreSums(const AmxBlock& block) {
  const size_t stride = block.out_stride * sizeof(float);
  float* sums = block.out + kPanel * 16;
  StoreTile<kPanel>(sums, stride);
  if constexpr (kRowTiles == 2) StoreTile<2 + kPanel>(sums + kTileRows * block.out_stride, stride);
  if constexpr (kPanel + 1 < kPanels) StoreSums<kRowTiles, kPanels, kPanel + 1>(block);
}

// One tile of K of panel kPanel and all after it: load the weights once, multiply them with both
// tiles of activations.
template <typename Kernel, int kRowTiles, int kPanels, int kPanel = 0>
inline void MultiplyPanels(const uint8_t* weights, size_t panel_bytes) {
  constexpr int kB = kTileB + kPanel % 2;
  LoadTile<kB>(weights, kTileRowBytes);
  Kernel::template Multiply<kPanel, kTileA, kB>();
  if constexpr (kRowTiles == 2) Kernel::template Multiply<2 + kPanel, kTileA + 1, kB>();
  if constexpr (kPanel + 1 < kPanels) {
    MultiplyPanels<Kernel, kRowTiles, kPanels, kPanel + 1>(weights + panel_bytes, panel_bytes);
  }
}

template <typename Kernel, int kRowTiles, int kPanels>
inline void RunTiles(const AmxBlock& block) {
  StartSums<kRowTiles, kPanels>(block);
  const uint8_t* upper = block.activations;
  const uint8_t* lower = upper + kTileRows * block.activation_stride;
  const uint8_t* weights = block.panels;
  for (size_t step = 0; step < block.steps; ++step) {
    LoadTile<kTileA>(upper, block.activation_stride);
    if constexpr (kRowTiles == 2) LoadTile<kTileA + 1>(lower, block.activation_stride);
    MultiplyPanels<Kernel, kRowTiles, kPanels>(weights, block.panel_bytes);
    upper += kTileRowBytes;
    lower += kTileRowBytes;
    weights += kWeightTileBytes;
  }
  StoreSums<kRowTiles, kPanels>(block);
}

template <typename Kernel>
inline void RunBlock(const AmxBlock& block, int panels) {
  if (block.rows > kTileRows) {
    return panels == 1 ? RunTiles<Kernel, 2, 1>(block) : RunTiles<Kernel, 2, 2>(block);
  }
  if (panels == 1) return RunTiles<Kernel, 1, 1>(block);
  if (panels == 2) return RunTiles<Kernel, 1, 2>(block);
  if (panels == 3) return RunTiles<Kernel, 1, 3>(block);
  RunTiles<Kernel, 1, 4>(block);
}

inline int AmxChunkRows(size_t stride) {
  const size_t rows =
      stride == 0 ? kAmxMaxChunkRows : kAmxChunkBytes / stride / kAmxBlockRows * kAmxBlockRows;
  if (rows < kAmxBlockRows) return kAmxBlockRows;
  return rows > kAmxMaxChunkRows ? kAmxMaxChunkRows : static_cast<int>(rows);
}

// All of K of the given row of the call and its panels from `panel` on.
inline AmxBlock BlockAt(const MicroKernelArgs& args, int first_row, int panel) {
  const size_t row = static_cast<size_t>(first_row);
  const size_t column = static_cast<size_t>(panel) * 16;
  AmxBlock block{};
  block.activations = args.activations + row * args.activation_stride;
  block.activation_stride = args.activation_stride;
  if (args.activation_scales != nullptr) block.activation_scales = args.activation_scales + row;
  block.panels = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  block.panel_bytes = args.panel_bytes;
  block.steps = args.padded_k_bytes / kTileRowBytes;
  if (args.row_scales != nullptr) block.row_scales = args.row_scales + column;
  block.out = args.out + row * args.out_stride + column;
  block.out_stride = args.out_stride;
  return block;
}

// Rows of a chunk times up to four panels: all of K at once for one block of rows, else chunks of
// K, whose sums wait in `out`. `block` is that of the first row.
template <typename Kernel>
inline void RunRows(AmxBlock block, int rows, int panels, Tiles& tiles) {
  const size_t all_steps = block.steps;
  const size_t chunk = rows > kAmxBlockRows ? kAmxChunkSteps : all_steps;
  for (size_t begin = 0; begin < all_steps; begin += chunk) {
    const bool last = all_steps - begin <= chunk;
    AmxBlock part = block;
    part.activations += begin * kTileRowBytes;
    part.panels += begin * kWeightTileBytes;
    part.steps = last ? all_steps - begin : chunk;
    part.resume = begin > 0;
    for (int row = 0; row < rows; row += kAmxBlockRows) {
      part.rows = rows - row < kAmxBlockRows ? rows - row : kAmxBlockRows;
      tiles.Configure(part.rows, kTileRowBytes);
      RunBlock<Kernel>(part, panels);
      if (last) Kernel::Finish(part, panels);
      part.activations += kAmxBlockRows * part.activation_stride;
      if (part.activation_scales != nullptr) part.activation_scales += kAmxBlockRows;
      part.row_offsets += kAmxBlockRows;
      part.out += kAmxBlockRows * part.out_stride;
    }
  }
}

// Kernel has RowOffset(row bytes, number of bytes), Multiply<accumulator, A, B>() and
// Finish(block, panels), which makes the results of the sums in block.out.
template <typename Kernel>
inline void RunAmx(const MicroKernelArgs& args) {
  if (args.rows == 0 || args.num_panels == 0) return;
  Tiles tiles;
  const int chunk = AmxChunkRows(args.activation_stride);
  for (int first = 0; first < args.rows; first += chunk) {
    const int rows = args.rows - first < chunk ? args.rows - first : chunk;
    int32_t row_offsets[kAmxMaxChunkRows];
    for (int r = 0; r < rows; ++r) {
      const uint8_t* row =
          args.activations + static_cast<size_t>(first + r) * args.activation_stride;
      row_offsets[r] = Kernel::RowOffset(row, args.padded_k_bytes);
    }
    const int group = rows > kTileRows ? 2 : kAccumulators;
    for (int panel = 0; panel < args.num_panels; panel += group) {
      AmxBlock block = BlockAt(args, first, panel);
      block.row_offsets = row_offsets;
      const int left = args.num_panels - panel;
      RunRows<Kernel>(block, rows, left < group ? left : group, tiles);
    }
  }
  ReleaseTiles();
}

}  // namespace
}  // namespace atelier
