#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_avx512-inl.h"
#include "libs/kernels/gemm/block_kernel_list-inl.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/row_cursor-inl.h"

// Many rows times block-quantised weights in AVX-512: a block of two panels is unpacked once into
// L1 for all rows, and a broadcast of activations serves both panels; with one panel the loads of
// broadcasts, one for each product, would be the limit. Order of operations: docs/numerics.md. In
// an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

constexpr size_t kPairRows = 6;  // their sums and parts of two panels are 24 registers
// From so many rows on, unpacking once pays (measured on Zen 4); and from 25 on they divide into
// blocks of 5 and 6.
constexpr size_t kMinPairRows = 32;
constexpr size_t kLeastPairRows = 5;

template <BlockFormat kFormat>
struct UnpackedPair {
  static constexpr size_t kMaxScales = kBlockK / kFormat.group;

  alignas(64) uint8_t codes[2][kBlockK / 4][64];  // quad by quad
  alignas(64) float scales[2][kMaxScales][16];
  alignas(64) float mins[2][kMaxScales][16];

  __m512 Mins(size_t side, size_t j) const {
    if constexpr (kFormat.min == MinCoding::kNone) return _mm512_setzero_ps();
    return _mm512_load_ps(mins[side][j]);
  }
};

template <BlockFormat kFormat>
inline void Unpack(const PackedSource<kFormat>& from, size_t side, UnpackedPair<kFormat>& to) {
  for (size_t half = 0; half < 2 * from.block.groups; ++half) {
    __m512i quads[4];
    from.Quads(half, quads);
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; ++q) _mm512_store_si512(to.codes[side][4 * half + q], quads[q]);
  }
  for (size_t j = 0; j < NumScales(kFormat, from.block.groups); ++j) {
    from.Prefetch(j);
    const __m512 scales = from.Scales(j);
    _mm512_store_ps(to.scales[side][j], scales);
    if constexpr (kFormat.min != MinCoding::kNone) {
      _mm512_store_ps(to.mins[side][j], from.Mins(j, scales));
    }
  }
}

// As AddGroup, for both panels.
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddPairGroup(const UnpackedPair<kFormat>& weights, size_t j,
                         const GroupSums<kFormat, kRows>& activations, RowCursor<kRows>& codes,
                         __m512 parts[2][kRows]) {
  constexpr size_t kHalves = static_cast<size_t>(kFormat.group) / 16;
  const size_t lane = j * GroupSums<kFormat, kRows>::kLaneStep;
  __m512i dots[2][kRows];
#pragma GCC unroll 6
  for (size_t r = 0; r < kRows; ++r) dots[0][r] = dots[1][r] = activations.Start(r, lane);
  for (size_t half = j * kHalves; half < (j + 1) * kHalves; ++half) {
    const uint8_t* rows[kRows];
#pragma GCC unroll 6
    for (size_t r = 0; r < kRows; ++r) {
      rows[r] = codes.At(r);
      asm("" : "+r"(rows[r]));  // or each sum of a stride and an offset gets a register
    }
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; ++q) {
      const __m512i first = _mm512_load_si512(weights.codes[0][4 * half + q]);
      const __m512i second = _mm512_load_si512(weights.codes[1][4 * half + q]);
#pragma GCC unroll 6
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i broadcast = _mm512_set1_epi32(LoadAs<int32_t>(rows[r] + q * 4));
        dots[0][r] = Dot::template Add<kMaxCode<kFormat>>(dots[0][r], first, broadcast);
        dots[1][r] = Dot::template Add<kMaxCode<kFormat>>(dots[1][r], second, broadcast);
      }
    }
    codes.Advance(16);
  }
#pragma GCC unroll 2
  for (size_t side = 0; side < 2; ++side) {
    const __m512 scales = _mm512_load_ps(weights.scales[side][j]);
    const __m512 mins = weights.Mins(side, j);
#pragma GCC unroll 6
    for (size_t r = 0; r < kRows; ++r) {
      parts[side][r] = activations.AddScaled(dots[side][r], scales, mins, r, lane, parts[side][r]);
    }
  }
}

// kRows rows times one block of two panels; row r's results are totals[2 r] and totals[2 r + 1].
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddPairBlock(const UnpackedPair<kFormat>& weights, size_t groups,
                         const BlockRows& rows) {
  RowCursor<kRows> codes(rows.records, rows.stride);
  const GroupSums<kFormat, kRows> activations(codes);
  __m512 parts[2][kRows];
#pragma GCC unroll 6
  for (size_t r = 0; r < kRows; ++r) parts[0][r] = parts[1][r] = _mm512_setzero_ps();
  for (size_t j = 0; j < NumScales(kFormat, groups); ++j) {
    AddPairGroup<Dot, kFormat, kRows>(weights, j, activations, codes, parts);
  }
#pragma GCC unroll 6
  for (size_t r = 0; r < kRows; ++r) {
    AddTotal(rows, r, parts[0][r], rows.totals[2 * r]);
    AddTotal(rows, r, parts[1][r], rows.totals[2 * r + 1]);
  }
}

// Exactly `count` rows, kLeastPairRows <= count <= kRows.
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddPairRows(const UnpackedPair<kFormat>& weights, size_t groups, const BlockRows& rows,
                        size_t count) {
  if constexpr (kRows > kLeastPairRows) {
    if (count < kRows) {
      return AddPairRows<Dot, kFormat, kRows - 1>(weights, groups, rows, count);
    }
  }
  AddPairBlock<Dot, kFormat, kRows>(weights, groups, rows);
}

// kMinPairRows <= count <= kMaxBlockChunk rows times two panels.
template <typename Dot, BlockFormat kFormat>
inline void RunPair(const MicroKernelArgs& args, const PanelRows& rows, const uint8_t* panel,
                    bool prefetch, float* out) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t blocks = (rows.count + kPairRows - 1) / kPairRows;
  UnpackedPair<kFormat> weights;
  alignas(64) float totals[2 * kMaxBlockChunk][16];
  for (size_t i = 0; i < 2 * rows.count; ++i) _mm512_store_ps(totals[i], _mm512_setzero_ps());
  const uint8_t* records = rows.records;
  for (size_t b = 0; b * kBlockK < k; ++b, records += kActivationBlockBytes) {
    const size_t groups = GroupsOfBlock(k, b);
    for (size_t side = 0; side < 2; ++side) {
      const uint8_t* at = panel + side * args.panel_bytes;
      const BlockView view{at, at + HeaderBytes(kFormat, groups), groups, args.bf16_scales};
      Unpack<kFormat>({view, prefetch ? at + 2 * args.panel_bytes : nullptr}, side, weights);
    }
    for (size_t i = 0; i < blocks; ++i) {
      const size_t begin = rows.count * i / blocks, end = rows.count * (i + 1) / blocks;
      AddPairRows<Dot, kFormat, kPairRows>(
          weights, groups,
          {records + begin * args.activation_stride, args.activation_stride, totals + 2 * begin},
          end - begin);
    }
    panel += BlockBytes(kFormat, groups);
  }
  for (size_t r = 0; r < rows.count; ++r) {
    _mm512_storeu_ps(out + r * args.out_stride, _mm512_load_ps(totals[2 * r]));
    _mm512_storeu_ps(out + r * args.out_stride + 16, _mm512_load_ps(totals[2 * r + 1]));
  }
}

template <typename Dot, BlockFormat kFormat>
void BlockGemm(const MicroKernelArgs& args) {
  const size_t num_rows = static_cast<size_t>(args.rows);
  for (size_t first = 0; first < num_rows; first += kMaxBlockChunk) {
    const size_t left = num_rows - first;
    const PanelRows rows{args.activations + first * args.activation_stride,
                         left < kMaxBlockChunk ? left : kMaxBlockChunk};
    float* out = args.out + first * args.out_stride;
    for (int panel = 0; panel < args.num_panels;) {
      const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
      const bool pair = rows.count >= kMinPairRows && panel + 1 < args.num_panels;
      const int step = pair ? 2 : 1;
      const bool prefetch =
          rows.count >= kMinBlockPrefetchRows && panel + 2 * step <= args.num_panels;
      float* columns = out + static_cast<size_t>(panel) * 16;
      if (pair) {
        RunPair<Dot, kFormat>(args, rows, weights, prefetch, columns);
      } else {
        RunPanel<Dot, kFormat>(args, rows, weights, prefetch, columns);
      }
      panel += step;
    }
  }
}

// For AllBlockKernels.
template <typename Dot>
struct BlockIsa {
  template <BlockFormat kFormat>
  static void Gemm(const MicroKernelArgs& args) {
    BlockGemm<Dot, kFormat>(args);
  }
};

}  // namespace
}  // namespace atelier
