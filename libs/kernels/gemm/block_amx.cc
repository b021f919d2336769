#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/amx-inl.h"
#include "libs/kernels/gemm/block_avx512-inl.h"
#include "libs/kernels/gemm/block_kernel_list-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// Block-quantised weights on tiles: a block of two panels is unpacked once into tiles in L1, with
// its scales; then every 16 rows are multiplied with it, scale group by scale group (a group of 32
// k is half a tile, one of 16 a quarter), and the sums of the groups are scaled in the order of
// docs/numerics.md.

namespace atelier {
namespace {

constexpr size_t kPairPanels = 2;
constexpr size_t kSumsOfTile = 256;  // 16 rows x 16 columns

// Bytes of K of one product: a scale group, or the part of it that a tile holds.
template <BlockFormat kFormat>
constexpr size_t kProductBytes = kFormat.group < 64 ? static_cast<size_t>(kFormat.group) : 64;

// One block of a panel as the products and the scaling want it.
template <BlockFormat kFormat>
struct UnpackedBlock {
  static constexpr size_t kMaxScales = kBlockK / kFormat.group;

  alignas(64) uint8_t codes[kBlockK * 16];  // signed, the zero taken off; quad by quad
  alignas(64) float scales[kMaxScales][16];
  alignas(64) float mins[kMaxScales][16];
};

template <BlockFormat kFormat>
inline void UnpackCodes(const BlockView& block, uint8_t* to) {
  static_assert(kMaxCode<kFormat> - (kFormat.zero_shift == 0 ? 0 : 1 << kFormat.zero_shift) < 128);
  constexpr int kZero = kFormat.zero_shift == 0 ? 0 : 1 << kFormat.zero_shift;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(kZero));
  for (size_t half = 0; half < 2 * block.groups; ++half, to += 4 * kTileRowBytes) {
    __m512i quads[4];
    UnpackHalf<kFormat.bits>(block.codes + half / 2 * GroupCodeBytes(kFormat), half % 2, quads);
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; ++q) {
      const __m512i codes = _mm512_sub_epi8(LookUp<kFormat.table>(quads[q]), zero);
      _mm512_store_si512(to + q * kTileRowBytes, codes);
    }
  }
}

template <BlockFormat kFormat>
inline void Unpack(const BlockView& block, UnpackedBlock<kFormat>& to) {
  UnpackCodes<kFormat>(block, to.codes);
  for (size_t j = 0; j < NumScales(kFormat, block.groups); ++j) {
    const __m512 scales = ScalesOf<kFormat>(block, j);
    _mm512_store_ps(to.scales[j], scales);
    if constexpr (kFormat.min != MinCoding::kNone) {
      _mm512_store_ps(to.mins[j], MinsOf<kFormat>(block, j, scales));
    }
  }
}

// What up to 16 rows have in a block of up to two panels, before any scale.
template <BlockFormat kFormat>
struct BlockSums {
  static constexpr size_t kMaxScales = UnpackedBlock<kFormat>::kMaxScales;

  alignas(64) int32_t products[kPairPanels][kMaxScales][kSumsOfTile];
  alignas(64) float activations[kTileRows][16];  // sums of them, by scale group
};

// Scale group j of both panels in the accumulators kFirst and kFirst + 1.
template <BlockFormat kFormat, int kFirst, int kA>
inline void MultiplyGroup(const UnpackedBlock<kFormat>* weights, size_t panels,
                          const uint8_t* records, size_t stride, size_t j,
                          BlockSums<kFormat>& sums) {
  constexpr size_t kBytes = kProductBytes<kFormat>;
  ZeroTile<kFirst>();
  ZeroTile<kFirst + 1>();
  for (size_t at = j * kFormat.group; at < (j + 1) * kFormat.group; at += kBytes) {
    LoadTile<kA>(records + at, stride);
    LoadTile<kTileB>(weights[0].codes + at * 16, kTileRowBytes);
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kFirst), "i"(kA), "i"(kTileB));
    if (panels == 1) continue;
    LoadTile<kTileB + 1>(weights[1].codes + at * 16, kTileRowBytes);
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kFirst + 1), "i"(kA),
                     "i"(kTileB + 1));
  }
  StoreTile<kFirst>(sums.products[0][j], kTileRowBytes);
  if (panels > 1) StoreTile<kFirst + 1>(sums.products[1][j], kTileRowBytes);
}

// The accumulators of consecutive groups alternate, so that no product waits for a store.
template <BlockFormat kFormat>
inline void MultiplyBlock(const UnpackedBlock<kFormat>* weights, size_t panels, size_t scales,
                          const uint8_t* records, size_t stride, BlockSums<kFormat>& sums) {
  for (size_t j = 0; j < scales; j += 2) {
    MultiplyGroup<kFormat, 0, kTileA>(weights, panels, records, stride, j, sums);
    if (j + 1 == scales) return;
    MultiplyGroup<kFormat, 2, kTileA + 1>(weights, panels, records, stride, j + 1, sums);
  }
}

// Sums of the activations of one row by scale group; beyond the block's groups they mean nothing.
template <BlockFormat kFormat>
inline void LoadActivationSums(const uint8_t* record, size_t scales, float* to) {
  if constexpr (kFormat.group == 16) {
    _mm512_store_ps(to, _mm512_cvtepi32_ps(_mm512_loadu_si512(record + kActivationSums16)));
  } else if constexpr (kFormat.group == 32) {
    const auto* sums = reinterpret_cast<const __m256i*>(record + kActivationSums32);
    _mm256_store_ps(to, _mm256_cvtepi32_ps(_mm256_loadu_si256(sums)));
  } else {
    for (size_t j = 0; j < scales; ++j) to[j] = static_cast<float>(GroupSum<kFormat>(record, j));
  }
}

// Adds the block's part of one panel to the results of the rows, or starts them.
template <BlockFormat kFormat>
inline void AddScaled(const UnpackedBlock<kFormat>& weights, const BlockSums<kFormat>& sums,
                      size_t panel, size_t scales, const AmxBlock& block) {
  __m512 parts[kTileRows];
#pragma GCC unroll 16
  for (size_t r = 0; r < kTileRows; ++r) parts[r] = _mm512_setzero_ps();
  for (size_t j = 0; j < scales; ++j) {
    const __m512 scale = _mm512_load_ps(weights.scales[j]);
    const int32_t* products = sums.products[panel][j];
#pragma GCC unroll 16
    for (size_t r = 0; r < kTileRows; ++r) {
      const __m512 dots = _mm512_cvtepi32_ps(_mm512_load_si512(products + r * 16));
      parts[r] = _mm512_fmadd_ps(dots, scale, parts[r]);
    }
    if constexpr (kFormat.min != MinCoding::kNone) {
      const __m512 min = _mm512_load_ps(weights.mins[j]);
#pragma GCC unroll 16
      for (size_t r = 0; r < kTileRows; ++r) {
        parts[r] = _mm512_fmadd_ps(_mm512_set1_ps(sums.activations[r][j]), min, parts[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kTileRows; ++r) {
    if (static_cast<int>(r) >= block.rows) return;
    float scale;
    __builtin_memcpy(&scale, block.activations + r * block.activation_stride + kActivationScale,
                     sizeof(scale));
    float* out = block.out + r * block.out_stride + panel * 16;
    const __m512 before = block.resume ? _mm512_loadu_ps(out) : _mm512_setzero_ps();
    _mm512_storeu_ps(out, _mm512_fmadd_ps(parts[r], _mm512_set1_ps(scale), before));
  }
}

// All rows of a chunk times block `b` of one or two panels. `block` is that of the chunk's first
// row, its activations at the records of the block, its panels at the blocks of this index.
template <BlockFormat kFormat>
inline void RunPanelBlock(AmxBlock block, int rows, size_t panels, const BlockView* views,
                          Tiles& tiles, UnpackedBlock<kFormat>* weights, BlockSums<kFormat>& sums) {
  const size_t scales = NumScales(kFormat, views[0].groups);
  for (size_t p = 0; p < panels; ++p) Unpack<kFormat>(views[p], weights[p]);
  for (int row = 0; row < rows; row += kTileRows) {
    block.rows = rows - row < kTileRows ? rows - row : kTileRows;
    tiles.Configure(block.rows, kProductBytes<kFormat>);
    MultiplyBlock<kFormat>(weights, panels, scales, block.activations, block.activation_stride,
                           sums);
    if constexpr (kFormat.min != MinCoding::kNone) {
      for (size_t r = 0; r < static_cast<size_t>(block.rows); ++r) {
        LoadActivationSums<kFormat>(block.activations + r * block.activation_stride, scales,
                                    sums.activations[r]);
      }
    }
    for (size_t p = 0; p < panels; ++p) AddScaled<kFormat>(weights[p], sums, p, scales, block);
    block.activations += kTileRows * block.activation_stride;
    block.out += kTileRows * block.out_stride;
  }
}

struct Amx {
  template <BlockFormat kFormat>
  static void Gemm(const MicroKernelArgs& args);
};

template <BlockFormat kFormat>
void Amx::Gemm(const MicroKernelArgs& args) {
  if (args.rows == 0 || args.num_panels == 0) return;
  UnpackedBlock<kFormat> weights[kPairPanels];
  BlockSums<kFormat> sums{};  // rows that a tile lacks are scaled too, and not stored
  Tiles tiles;
  const size_t k = static_cast<size_t>(args.k);
  const int chunk = AmxChunkRows(args.activation_stride);
  for (int first = 0; first < args.rows; first += chunk) {
    const int rows = args.rows - first < chunk ? args.rows - first : chunk;
    for (int panel = 0; panel < args.num_panels; panel += kPairPanels) {
      const size_t panels = args.num_panels - panel == 1 ? 1 : kPairPanels;
      AmxBlock block = BlockAt(args, first, panel);
      for (size_t b = 0; b * kBlockK < k; ++b) {
        const size_t groups = GroupsOfBlock(k, b);
        BlockView views[kPairPanels];
        for (size_t p = 0; p < panels; ++p) {
          const uint8_t* at = block.panels + p * block.panel_bytes;
          views[p] = {at, at + HeaderBytes(kFormat, groups), groups, args.bf16_scales};
        }
        block.resume = b > 0;
        RunPanelBlock<kFormat>(block, rows, panels, views, tiles, weights, sums);
        block.panels += BlockBytes(kFormat, groups);
        block.activations += kActivationBlockBytes;
      }
    }
  }
  ReleaseTiles();
}

}  // namespace

extern constexpr BlockKernels kBlockAmxKernels = AllBlockKernels<Amx>();

}  // namespace atelier
