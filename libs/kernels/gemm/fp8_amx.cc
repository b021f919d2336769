#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/amx-inl.h"
#include "libs/kernels/gemm/fp8_avx512-inl.h"
#include "libs/kernels/gemm/fp8_widen_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// FP8 weights on tiles: a block of 128 k of a few panels is widened once into tiles of bf16 in L1;
// then all rows of a chunk are multiplied with it, up to 32 at a time. A group of 32 k is one tile.
// What shares a scale is added in the tile, from 0, and leaves it to be scaled and added to the
// results (docs/numerics.md).

namespace atelier {
namespace {

constexpr size_t kBlockGroups = kFp8BlockK / kFp8GroupK;

// A block of as many panels as meet the rows at a time, widened.
struct WidenedBlock {
  static constexpr size_t kPanelBytes = kBlockGroups * kWeightTileBytes;
  static_assert(kFp8GroupK * sizeof(uint16_t) == kTileRowBytes);

  alignas(64) uint8_t panels[kAccumulators * kPanelBytes];
};

// The sums in a block of up to four tiles of results, before any scale.
template <Fp8Scales kScales>
struct BlockParts {
  static constexpr size_t kMost = kScales == Fp8Scales::kGroups ? kBlockGroups : 1;

  alignas(64) float sums[kMost][kAccumulators * kTileRows * 16];  // [rows, panels, 16]
};

// What the results of one panel get from a block.
template <Fp8Scales kScales>
struct PanelParts {
  const float* sums;      // of the panel in BlockParts
  size_t stride;          // from row to row
  size_t count;           // 1, or the groups of the block
  const uint8_t* scales;  // kRows: the panel's, else the block's
  bool last;              // block of K
};

inline void Widen(const uint8_t* codes, size_t groups, uint8_t* to) {
  for (size_t i = 0; i < groups * kFp8GroupCodes; i += 64, to += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + i + kFp8Ahead), _MM_HINT_T0);
    const WidePairs pairs = WidenQuad(codes + i);
    _mm512_store_si512(to, pairs.first);
    _mm512_store_si512(to + 64, pairs.second);
  }
}

// `block` holds the rows, and the results as its `out`.
template <Fp8Scales kScales>
inline void MultiplyBlock(const AmxBlock& block, int panels, const WidenedBlock& weights,
                          size_t groups, BlockParts<kScales>& parts) {
  AmxBlock part = block;
  part.panels = weights.panels;
  part.panel_bytes = WidenedBlock::kPanelBytes;
  part.steps = kScales == Fp8Scales::kGroups ? 1 : groups;
  part.resume = false;
  part.out_stride = static_cast<size_t>(panels) * 16;
  for (size_t g = 0; g < groups; g += part.steps) {
    part.out = parts.sums[g / part.steps];
    RunBlock<Bf16Products>(part, panels);
    part.activations += kTileRowBytes;
    part.panels += kWeightTileBytes;
  }
}

// Adds the parts of one panel to the results of its rows, or starts them.
template <Fp8Scales kScales>
inline void AddParts(const AmxBlock& block, const PanelParts<kScales>& parts) {
  constexpr size_t kMost = BlockParts<kScales>::kMost;
  constexpr size_t kPartFloats = sizeof(BlockParts<kScales>) / sizeof(float) / kMost;
  __m512 scales[kMost];
  for (size_t j = 0; j < parts.count; ++j) {
    scales[j] = kScales == Fp8Scales::kGroups
                    ? PowersOfTwo(parts.scales + j * 16)
                    : _mm512_load_ps(reinterpret_cast<const float*>(parts.scales));
  }
  const float* sums = parts.sums;
  float* out = block.out;
  for (int r = 0; r < block.rows; ++r, sums += parts.stride, out += block.out_stride) {
    __m512 total = block.resume ? _mm512_loadu_ps(out) : _mm512_setzero_ps();
    if constexpr (kScales == Fp8Scales::kRows) {
      total = _mm512_add_ps(total, _mm512_load_ps(sums));
      if (parts.last) total = _mm512_mul_ps(total, scales[0]);
    } else {
      for (size_t j = 0; j < parts.count; ++j) {
        total = _mm512_fmadd_ps(_mm512_load_ps(sums + j * kPartFloats), scales[j], total);
      }
    }
    _mm512_storeu_ps(out, total);
  }
}

// One block of 128 k of one to four panels.
struct BlockOfK {
  size_t groups;
  size_t offset;  // in every panel
  bool last;
};

// All rows of a chunk times a block. `rows_block` is that of the chunk's first row, its activations
// at the block's, its panels whole.
template <Fp8Scales kScales>
inline void RunBlockOfK(AmxBlock rows_block, int rows, int panels, const BlockOfK& k,
                        Tiles& tiles) {
  WidenedBlock weights;
  BlockParts<kScales> parts;
  for (int p = 0; p < panels; ++p) {
    const size_t panel = static_cast<size_t>(p);
    Widen(rows_block.panels + panel * rows_block.panel_bytes + k.offset + Fp8BlockHeader(kScales),
          k.groups, weights.panels + panel * WidenedBlock::kPanelBytes);
  }
  for (int row = 0; row < rows; row += kAmxBlockRows) {
    rows_block.rows = rows - row < kAmxBlockRows ? rows - row : kAmxBlockRows;
    tiles.Configure(rows_block.rows, kTileRowBytes);
    MultiplyBlock<kScales>(rows_block, panels, weights, k.groups, parts);
    for (int p = 0; p < panels; ++p) {
      const size_t panel = static_cast<size_t>(p);
      const uint8_t* scales = rows_block.panels + panel * rows_block.panel_bytes +
                              (kScales == Fp8Scales::kRows ? 0 : k.offset);
      AmxBlock columns = rows_block;
      columns.out += panel * 16;
      AddParts<kScales>(columns, {parts.sums[0] + panel * 16, static_cast<size_t>(panels) * 16,
                                  kScales == Fp8Scales::kGroups ? k.groups : 1, scales, k.last});
    }
    rows_block.activations += kAmxBlockRows * rows_block.activation_stride;
    rows_block.out += kAmxBlockRows * rows_block.out_stride;
  }
}

// Rows of a chunk times one to four panels.
template <Fp8Scales kScales>
inline void RunPanels(AmxBlock block, int rows, int panels, size_t k, Tiles& tiles) {
  size_t offset = Fp8PanelHeader(kScales);
  for (size_t b = 0; b * kFp8BlockK < k; ++b) {
    const size_t groups = Fp8GroupsOfBlock(k, b);
    block.resume = b > 0;
    RunBlockOfK<kScales>(block, rows, panels, {groups, offset, (b + 1) * kFp8BlockK >= k}, tiles);
    offset += Fp8BlockBytes(kScales, groups);
    block.activations += kFp8BlockK * sizeof(uint16_t);
  }
}

template <Fp8Scales kScales>
void Fp8Gemm(const MicroKernelArgs& args) {
  if (args.rows == 0 || args.num_panels == 0) return;
  Tiles tiles;
  const int chunk = AmxChunkRows(args.activation_stride);
  for (int first = 0; first < args.rows; first += chunk) {
    const int rows = args.rows - first < chunk ? args.rows - first : chunk;
    const int group = rows > kTileRows ? 2 : kAccumulators;
    for (int panel = 0; panel < args.num_panels; panel += group) {
      const int left = args.num_panels - panel;
      RunPanels<kScales>(BlockAt(args, first, panel), rows, left < group ? left : group,
                         static_cast<size_t>(args.k), tiles);
    }
  }
  ReleaseTiles();
}

}  // namespace

extern constexpr Fp8Kernels kFp8AmxKernels = {
    Fp8Gemm<Fp8Scales::kBlocks>, Fp8Gemm<Fp8Scales::kRows>, Fp8Gemm<Fp8Scales::kGroups>};

}  // namespace atelier
