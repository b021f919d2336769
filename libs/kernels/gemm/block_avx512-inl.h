#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/load-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/row_cursor-inl.h"

// Block-quantised weights times int8 activations in AVX-512: a zmm is one quad (4 k) of a panel's
// 16 output rows. Dot is the one instruction set's sum of u8 x s8 products:
// Dot::Add<kMaxCode>(sums, codes, activations). Order of operations: docs/numerics.md. In an
// anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

constexpr size_t kBlockRows = 8;  // their sums, parts and four quads of codes fill the registers
// Rows that meet a panel while it is in the cache.
constexpr size_t kMaxBlockChunk = 64;
// As kMinPrefetchRows of panel_loop-inl.h.
constexpr size_t kMinBlockPrefetchRows = 3;

template <BlockFormat kFormat>
constexpr int kMaxCode = kFormat.table == CodeTable::kIq4Nl ? 241 : (1 << kFormat.bits) - 1;

// Where one block of a panel lies.
struct BlockView {
  const uint8_t* header;
  const uint8_t* codes;
  size_t groups;  // of 32 k
  bool bf16_scales;
};

inline __m512i LoadCodes(const uint8_t* at) { return _mm512_loadu_si512(at); }
inline __m128i LoadBytes(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline __m512 UnsignedBytes(const uint8_t* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(LoadBytes(at)));
}
inline __m512 Halves(const uint8_t* at, bool bf16) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  if (bf16) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  return _mm512_cvtph_ps(bits);
}

// 2^(e - 128): e - 1 in the exponent field; 0 and 1 are subnormal, 255 is NaN.
inline __m512 Exponents(const uint8_t* at) {
  const __m512i e = _mm512_cvtepu8_epi32(LoadBytes(at));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  const __m512i finite =
      _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), normal, subnormal);
  return _mm512_castsi512_ps(_mm512_mask_blend_epi32(
      _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)), finite, _mm512_set1_epi32(0x7fc00000)));
}

// Scales of group j of the 16 output rows.
template <BlockFormat kFormat>
inline __m512 ScalesOf(const BlockView& block, size_t j) {
  const uint8_t* at = block.header + ScalesOffset(kFormat) + j * ScaleStride(kFormat);
  if constexpr (kFormat.scale == ScaleCoding::kHalf) return Halves(at, block.bf16_scales);
  if constexpr (kFormat.scale == ScaleCoding::kE8M0) return Exponents(at);
  if constexpr (kFormat.scale == ScaleCoding::kSuperU) {
    return _mm512_mul_ps(Halves(block.header, false), UnsignedBytes(at));
  }
  if constexpr (kFormat.scale == ScaleCoding::kSuperS) {
    const __m512 sub = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes(at)));
    return _mm512_mul_ps(Halves(block.header, false), sub);
  }
  if constexpr (kFormat.scale == ScaleCoding::kSuperNibble) {
    const __m512i bytes = _mm512_cvtepu8_epi32(LoadBytes(at));
    const __m512 sub = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
    return _mm512_mul_ps(Halves(block.header, false), sub);
  }
}

// What is added per sum of activations of group j; `scales` are those of the group.
template <BlockFormat kFormat>
inline __m512 MinsOf(const BlockView& block, size_t j, __m512 scales) {
  const uint8_t* at = block.header + MinsOffset(kFormat, block.groups) + j * MinStride(kFormat);
  const __m512 zero = _mm512_setzero_ps();
  if constexpr (kFormat.min == MinCoding::kHalf) return Halves(at, block.bf16_scales);
  if constexpr (kFormat.min == MinCoding::kZeroCode) {
    return _mm512_sub_ps(zero, _mm512_mul_ps(scales, UnsignedBytes(at)));
  }
  if constexpr (kFormat.min == MinCoding::kSuperU) {
    const __m512 super = Halves(block.header + SuperMinOffset(kFormat), false);
    return _mm512_sub_ps(zero, _mm512_mul_ps(super, UnsignedBytes(at)));
  }
  if constexpr (kFormat.min == MinCoding::kSuperNibble) {
    const uint8_t* both = block.header + ScalesOffset(kFormat) + j * ScaleStride(kFormat);
    const __m512i high = _mm512_srli_epi32(_mm512_cvtepu8_epi32(LoadBytes(both)), 4);
    const __m512 super = Halves(block.header + SuperMinOffset(kFormat), false);
    return _mm512_sub_ps(zero, _mm512_mul_ps(super, _mm512_cvtepi32_ps(high)));
  }
  return zero;
}

// Bits [shift, shift + bits) of every byte, at the bottom of the byte.
template <int kBits, int kShift>
inline __m512i BitsOf(__m512i bytes) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << kBits) - 1));
  return _mm512_and_si512(kShift == 0 ? bytes : _mm512_srli_epi16(bytes, kShift), mask);
}

// The codes of quads 4 h … 4 h + 3 of a group of 32 k: half the group.
template <int kBits>
inline void UnpackHalf(const uint8_t* group, size_t h, __m512i quads[4]) {
  if constexpr (kBits == 8) {
    for (size_t q = 0; q < 4; ++q) quads[q] = LoadCodes(group + (4 * h + q) * 64);
  } else if constexpr (kBits >= 4) {
    const __m512i first = LoadCodes(group + 2 * h * 64);
    const __m512i second = LoadCodes(group + (2 * h + 1) * 64);
    quads[0] = BitsOf<4, 0>(first);
    quads[1] = BitsOf<4, 4>(first);
    quads[2] = BitsOf<4, 0>(second);
    quads[3] = BitsOf<4, 4>(second);
  } else {
    const __m512i all = LoadCodes(group + h * 64);
    quads[0] = BitsOf<2, 0>(all);
    quads[1] = BitsOf<2, 2>(all);
    quads[2] = BitsOf<2, 4>(all);
    quads[3] = BitsOf<2, 6>(all);
  }
  constexpr int kLow = LowPlaneBits(kBits);
  const uint8_t* high = group + HighPlaneOffset(kBits);
  if constexpr (kBits - kLow == 2) {
    const __m512i all = LoadCodes(high + h * 64);
    quads[0] = _mm512_or_si512(quads[0], _mm512_slli_epi16(BitsOf<2, 0>(all), kLow));
    quads[1] = _mm512_or_si512(quads[1], _mm512_slli_epi16(BitsOf<2, 2>(all), kLow));
    quads[2] = _mm512_or_si512(quads[2], _mm512_slli_epi16(BitsOf<2, 4>(all), kLow));
    quads[3] = _mm512_or_si512(quads[3], _mm512_slli_epi16(BitsOf<2, 6>(all), kLow));
  }
  if constexpr (kBits - kLow == 1) {
    const __m512i all = _mm512_srli_epi16(LoadCodes(high), h == 0 ? 0 : 4);
    quads[0] = _mm512_or_si512(quads[0], _mm512_slli_epi16(BitsOf<1, 0>(all), kLow));
    quads[1] = _mm512_or_si512(quads[1], _mm512_slli_epi16(BitsOf<1, 1>(all), kLow));
    quads[2] = _mm512_or_si512(quads[2], _mm512_slli_epi16(BitsOf<1, 2>(all), kLow));
    quads[3] = _mm512_or_si512(quads[3], _mm512_slli_epi16(BitsOf<1, 3>(all), kLow));
  }
}

template <CodeTable kTable>
inline __m512i LookUp(__m512i codes) {
  if constexpr (kTable == CodeTable::kNone) return codes;
  const uint8_t* values = kTable == CodeTable::kIq4Nl ? kIq4NlCodes : kFp4Codes;
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(LoadBytes(values)), codes);
}

// Sum of the activations of scale group j, from the record's sums.
template <BlockFormat kFormat>
inline int32_t GroupSum(const uint8_t* record, size_t j) {
  if constexpr (kFormat.group == 16) return LoadAs<int32_t>(record + kActivationSums16 + j * 4);
  constexpr size_t kCount = static_cast<size_t>(kFormat.group) / 32;
  int32_t sum = 0;
  for (size_t i = 0; i < kCount; ++i) {
    sum += LoadAs<int32_t>(record + kActivationSums32 + (j * kCount + i) * 4);
  }
  return sum;
}

// The weights of a block as they are in the panel, unpacked where they are used.
template <BlockFormat kFormat>
struct PackedSource {
  static constexpr size_t kLines = BlockBytes(kFormat, kGroupsPerBlock) / 64;
  static constexpr size_t kLinesPerScale =
      (kLines + NumScales(kFormat, kGroupsPerBlock) - 1) / NumScales(kFormat, kGroupsPerBlock);

  BlockView block;
  const uint8_t* prefetch;  // the block to ask for meanwhile, or null

  void Quads(size_t half, __m512i quads[4]) const {
    UnpackHalf<kFormat.bits>(block.codes + half / 2 * GroupCodeBytes(kFormat), half % 2, quads);
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; ++q) quads[q] = LookUp<kFormat.table>(quads[q]);
  }
  __m512 Scales(size_t j) const { return ScalesOf<kFormat>(block, j); }
  __m512 Mins(size_t j, __m512 scales) const { return MinsOf<kFormat>(block, j, scales); }
  void Prefetch(size_t j) const {
    if (prefetch == nullptr) return;
#pragma GCC unroll 4
    for (size_t i = 0; i < kLinesPerScale; ++i) {
      _mm_prefetch(prefetch + (j * kLinesPerScale + i) * 64, _MM_HINT_T1);
    }
  }
};

// Rows of activations at their records of one block, and their results so far.
struct BlockRows {
  const uint8_t* records;
  size_t stride;
  float (*totals)[16];
};

// Sums of the activations of kRows rows by scale group: what sums of products start from, and what
// mins multiply. Group j is at lane j * kLaneStep.
template <BlockFormat kFormat, size_t kRows>
struct GroupSums {
  static constexpr size_t kLaneStep = kFormat.group <= 32 ? 1 : kFormat.group / 32;

  alignas(64) int32_t starts[kRows][16];
  alignas(64) float sums[kRows][16];

  static __m512i Load(const uint8_t* record) {
    if constexpr (kFormat.group == 16) return _mm512_loadu_si512(record + kActivationSums16);
    __m512i sums = _mm512_loadu_si512(record + kActivationSums32);
    if (kFormat.group >= 64) sums = _mm512_add_epi32(sums, _mm512_srli_epi64(sums, 32));
    if (kFormat.group == 128) {
      sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    }
    return sums;
  }

  explicit GroupSums(const RowCursor<kRows>& records) {
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i loaded = Load(records.At(r));
      if (kFormat.zero_shift != 0) {
        const __m512i zeros = _mm512_slli_epi32(loaded, kFormat.zero_shift);
        _mm512_store_si512(starts[r], _mm512_sub_epi32(_mm512_setzero_si512(), zeros));
      }
      if (kFormat.min != MinCoding::kNone) _mm512_store_ps(sums[r], _mm512_cvtepi32_ps(loaded));
    }
  }

  __m512i Start(size_t row, size_t lane) const {
    return kFormat.zero_shift == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(starts[row][lane]);
  }
  __m512 AddScaled(__m512i dots, __m512 scales, __m512 mins, size_t row, size_t lane,
                   __m512 part) const {
    part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, part);
    if constexpr (kFormat.min == MinCoding::kNone) return part;
    return _mm512_fmadd_ps(_mm512_set1_ps(sums[row][lane]), mins, part);
  }
};

// Adds what a row has in the block to its result.
inline void AddTotal(const BlockRows& rows, size_t row, __m512 part, float* total) {
  float scale;
  __builtin_memcpy(&scale, rows.records + row * rows.stride + kActivationScale, sizeof(scale));
  _mm512_store_ps(total, _mm512_fmadd_ps(part, _mm512_set1_ps(scale), _mm512_load_ps(total)));
}

// Scale group j: adds its products, scaled, to the parts of the rows, whose cursor is at the
// group's first code.
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddGroup(const PackedSource<kFormat>& weights, size_t j,
                     const GroupSums<kFormat, kRows>& activations, RowCursor<kRows>& codes,
                     __m512 parts[kRows]) {
  constexpr size_t kHalves = static_cast<size_t>(kFormat.group) / 16;
  const size_t lane = j * GroupSums<kFormat, kRows>::kLaneStep;
  __m512i dots[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) dots[r] = activations.Start(r, lane);
#pragma GCC unroll 2
  for (size_t i = 0; i < kHalves; ++i) {
    __m512i quads[4];
    weights.Quads(j * kHalves + i, quads);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const uint8_t* row = codes.At(r);
      asm("" : "+r"(row));  // or each sum of a stride and an offset gets a register
#pragma GCC unroll 4
      for (size_t q = 0; q < 4; ++q) {
        const __m512i broadcast = _mm512_set1_epi32(LoadAs<int32_t>(row + q * 4));
        dots[r] = Dot::template Add<kMaxCode<kFormat>>(dots[r], quads[q], broadcast);
      }
    }
    codes.Advance(16);
  }
  weights.Prefetch(j);
  const __m512 scales = weights.Scales(j);
  const __m512 mins = weights.Mins(j, scales);
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
    parts[r] = activations.AddScaled(dots[r], scales, mins, r, lane, parts[r]);
  }
}

// kRows rows times one block of a panel.
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddBlock(const PackedSource<kFormat>& weights, size_t groups, const BlockRows& rows) {
  RowCursor<kRows> codes(rows.records, rows.stride);
  const GroupSums<kFormat, kRows> activations(codes);
  __m512 parts[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) parts[r] = _mm512_setzero_ps();
  for (size_t j = 0; j < NumScales(kFormat, groups); ++j) {
    AddGroup<Dot, kFormat, kRows>(weights, j, activations, codes, parts);
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) AddTotal(rows, r, parts[r], rows.totals[r]);
}

// Exactly `count` <= kRows rows.
template <typename Dot, BlockFormat kFormat, size_t kRows>
inline void AddRows(const PackedSource<kFormat>& weights, size_t groups, const BlockRows& rows,
                    size_t count) {
  if constexpr (kRows > 1) {
    if (count < kRows) {
      return AddRows<Dot, kFormat, kRows - 1>(weights, groups, rows, count);
    }
  }
  AddBlock<Dot, kFormat, kRows>(weights, groups, rows);
}

// `count` rows times one block of a panel, in blocks of rows of nearly equal size; the first asks
// for the next panel.
template <typename Dot, BlockFormat kFormat>
inline void RunBlock(PackedSource<kFormat> weights, BlockRows rows, size_t count) {
  const size_t blocks = (count + kBlockRows - 1) / kBlockRows;
  for (size_t i = 0; i < blocks; ++i) {
    const size_t size = count * (i + 1) / blocks - count * i / blocks;
    AddRows<Dot, kFormat, kBlockRows>(weights, weights.block.groups, rows, size);
    rows.records += size * rows.stride;
    rows.totals += size;
    weights.prefetch = nullptr;
  }
}

// At most kMaxBlockChunk rows, from the record of their first block on.
struct PanelRows {
  const uint8_t* records;
  size_t count;
};

template <typename Dot, BlockFormat kFormat>
inline void RunPanel(const MicroKernelArgs& args, const PanelRows& rows, const uint8_t* panel,
                     bool prefetch, float* out) {
  const size_t k = static_cast<size_t>(args.k);
  // Beside each other, where the rows of the result may share sets of the cache.
  alignas(64) float totals[kMaxBlockChunk][16];
  for (size_t r = 0; r < rows.count; ++r) _mm512_store_ps(totals[r], _mm512_setzero_ps());
  const uint8_t* records = rows.records;
  for (size_t b = 0; b * kBlockK < k; ++b, records += kActivationBlockBytes) {
    const size_t groups = GroupsOfBlock(k, b);
    const BlockView view{panel, panel + HeaderBytes(kFormat, groups), groups, args.bf16_scales};
    RunBlock<Dot, kFormat>({view, prefetch ? panel + args.panel_bytes : nullptr},
                           {records, args.activation_stride, totals}, rows.count);
    panel += BlockBytes(kFormat, groups);
  }
  for (size_t r = 0; r < rows.count; ++r) {
    _mm512_storeu_ps(out + r * args.out_stride, _mm512_load_ps(totals[r]));
  }
}

}  // namespace
}  // namespace atelier
