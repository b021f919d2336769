#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/block_loop-inl.h"
#include "libs/kernels/gemm/block_scales_avx2-inl.h"
#include "libs/kernels/gemm/load-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// Block-quantised weights times int8 activations in 256-bit instructions: a ymm is one quad (4 k)
// of 8 of a panel's 16 output rows, a "side". Dot is the one instruction set's sum of products:
//   Dot::kSigned<max code>   it takes codes as signed bytes, value - 128, instead of unsigned
//   Dot::Sum                 what it accumulates in, and Dot::Total(sum), 8 int32
//   Dot::Add<max code, first, last>(sum, codes, activations)   the n-th quad since Total was zero
// Order of operations: docs/numerics.md. In an anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

template <BlockFormat kFormat>
constexpr int kMaxCode = kFormat.table == CodeTable::kIq4Nl ? 241
                         : kFormat.table == CodeTable::kFp4 ? 28
                                                            : (1 << kFormat.bits) - 1;

inline __m256i LoadSide(const uint8_t* row, size_t side) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + side * 32));
}

// Bits [kFrom, kFrom + kBits) of every byte, moved to [kTo, kTo + kBits), the others zero.
template <int kBits, int kFrom, int kTo>
inline __m256i MoveBits(__m256i bytes) {
  constexpr int kMask = ((1 << kBits) - 1) << kTo;
  if constexpr (kFrom > kTo) bytes = _mm256_srli_epi16(bytes, kFrom - kTo);
  if constexpr (kFrom < kTo) bytes = _mm256_slli_epi16(bytes, kTo - kFrom);
  return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(kMask)));
}

// The codes of quad kQuad of a group of 32 k.
template <int kBits, int kQuad>
inline __m256i QuadCodes(const uint8_t* group, size_t side) {
  constexpr int kLow = LowPlaneBits(kBits);
  constexpr int kLowQuads = 8 / kLow;  // in a row of the plane
  __m256i codes = LoadSide(group + kQuad / kLowQuads * 64, side);
  if constexpr (kLow < 8) codes = MoveBits<kLow, kQuad % kLowQuads * kLow, 0>(codes);
  constexpr int kHigh = kBits - kLow;
  if constexpr (kHigh > 0) {
    constexpr int kHighQuads = 8 / kHigh;
    const __m256i plane = LoadSide(group + HighPlaneOffset(kBits) + kQuad / kHighQuads * 64, side);
    codes = _mm256_or_si256(codes, MoveBits<kHigh, kQuad % kHighQuads * kHigh, kLow>(plane));
  }
  return codes;
}

// The values that are multiplied: unsigned with the zero point in them, or (kSigned) less 128.
template <CodeTable kTable, bool kSigned>
inline __m256i Values(__m256i codes) {
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
  if constexpr (kTable == CodeTable::kNone) return kSigned ? _mm256_xor_si256(codes, flip) : codes;
  const uint8_t* table = kTable == CodeTable::kIq4Nl ? kIq4NlCodes : kFp4Codes;
  __m256i values =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  if constexpr (kSigned) values = _mm256_xor_si256(values, flip);
  return _mm256_shuffle_epi8(values, codes);
}

// Sum of the activations of scale group j in all lanes, from the record's sums.
template <BlockFormat kFormat>
inline __m256i GroupSum(const uint8_t* record, size_t j) {
  if constexpr (kFormat.group == 16) {
    return _mm256_set1_epi32(LoadAs<int32_t>(record + kActivationSums16 + j * 4));
  }
  constexpr size_t kCount = static_cast<size_t>(kFormat.group) / 32;
  __m256i sum = _mm256_set1_epi32(LoadAs<int32_t>(record + kActivationSums32 + j * kCount * 4));
  for (size_t i = 1; i < kCount; ++i) {
    const uint8_t* at = record + kActivationSums32 + (j * kCount + i) * 4;
    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(LoadAs<int32_t>(at)));
  }
  return sum;
}

// The activations that kRows rows have for a block.
struct Records {
  const uint8_t* first;
  size_t stride;
  const uint8_t* row(size_t r) const { return first + r * stride; }
};

template <typename Dot, BlockFormat kFormat, int kRows>
struct BlockTile {
  using Sums = typename Dot::Sum[kRows][2];
  static constexpr bool kSigned = Dot::template kSigned<kMaxCode<kFormat>>;
  // Quads that are added before a scale is applied, counted up to a group of 32 k.
  static constexpr int kGroupQuads = kFormat.group == 16 ? 4 : 8;

  // Quad kQuad of the group of 32 k whose codes and first activation column are given.
  template <int kQuad>
  static void AddQuad(const uint8_t* group, size_t k, const Records& records, Sums& sums) {
    __m256i values[2];
#pragma GCC unroll 2
    for (size_t side = 0; side < 2; ++side) {
      values[side] = Values<kFormat.table, kSigned>(QuadCodes<kFormat.bits, kQuad>(group, side));
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const __m256i activations =
          _mm256_set1_epi32(LoadAs<int32_t>(records.row(r) + k + kQuad * 4));
#pragma GCC unroll 2
      for (size_t side = 0; side < 2; ++side) {
        Dot::template Add<kMaxCode<kFormat>, kQuad % kGroupQuads, kGroupQuads>(
            sums[r][side], values[side], activations);
      }
    }
  }

  // 16 k: half kHalf of a group of 32.
  template <int kHalf>
  static void AddHalf(const uint8_t* group, size_t k, const Records& records, Sums& sums) {
    AddQuad<4 * kHalf>(group, k, records, sums);
    AddQuad<4 * kHalf + 1>(group, k, records, sums);
    AddQuad<4 * kHalf + 2>(group, k, records, sums);
    AddQuad<4 * kHalf + 3>(group, k, records, sums);
  }

  // The integer sums of scale group j, times its scale.
  static void Scale(const BlockView& block, size_t j, const Records& records, const Sums& sums,
                    __m256 (&parts)[kRows][2]) {
    constexpr bool kHasZero = !kSigned && kFormat.zero_shift > 0;
    constexpr bool kHasMin = kFormat.min != MinCoding::kNone;
    __m256 scales[2], mins[2];
#pragma GCC unroll 2
    for (size_t side = 0; side < 2; ++side) {
      scales[side] = ScalesOf<kFormat>(block, j, side);
      mins[side] = MinsOf<kFormat>(block, j, side, scales[side]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      __m256i sum = _mm256_setzero_si256();
      if constexpr (kHasZero || kHasMin) sum = GroupSum<kFormat>(records.row(r), j);
#pragma GCC unroll 2
      for (size_t side = 0; side < 2; ++side) {
        __m256i dot = Dot::Total(sums[r][side]);
        if constexpr (kHasZero) {
          dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(sum, kFormat.zero_shift));
        }
        __m256& part = parts[r][side];
        part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scales[side], part);
        if constexpr (kHasMin) part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), mins[side], part);
      }
    }
  }

  // A group of 32 k with two scales.
  static void AddTwoScaleGroups(const BlockView& block, size_t i, const Records& records,
                                __m256 (&parts)[kRows][2]) {
    const uint8_t* group = block.codes + i * GroupCodeBytes(kFormat);
    Sums first{};
    AddHalf<0>(group, i * 32, records, first);
    Scale(block, 2 * i, records, first, parts);
    Sums second{};
    AddHalf<1>(group, i * 32, records, second);
    Scale(block, 2 * i + 1, records, second, parts);
  }

  static void AddScaleGroup(const BlockView& block, size_t j, const Records& records,
                            __m256 (&parts)[kRows][2]) {
    constexpr size_t kCount = kFormat.group / 32;
    Sums sums{};
    for (size_t i = j * kCount; i < (j + 1) * kCount; ++i) {
      const uint8_t* group = block.codes + i * GroupCodeBytes(kFormat);
      AddHalf<0>(group, i * 32, records, sums);
      AddHalf<1>(group, i * 32, records, sums);
    }
    Scale(block, j, records, sums, parts);
  }

  static void AddBlock(const BlockView& block, const Records& records, __m256 (&totals)[kRows][2]) {
    __m256 parts[kRows][2] = {};
    if constexpr (kFormat.group == 16) {
      for (size_t i = 0; i < block.groups; ++i) AddTwoScaleGroups(block, i, records, parts);
    } else {
      const size_t num_scales = NumScales(kFormat, block.groups);
      for (size_t j = 0; j < num_scales; ++j) AddScaleGroup(block, j, records, parts);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const __m256 scale =
          _mm256_broadcast_ss(reinterpret_cast<const float*>(records.row(r) + kActivationScale));
      totals[r][0] = _mm256_fmadd_ps(parts[r][0], scale, totals[r][0]);
      totals[r][1] = _mm256_fmadd_ps(parts[r][1], scale, totals[r][1]);
    }
  }
};

// What BlockGemm calls.
template <typename Dot>
struct BlockTiles {
  static constexpr int kRowBlock = 4;  // their sums of both sides fill half of the registers

  template <BlockFormat kFormat, int kRows>
  static void Compute(const MicroKernelArgs& args, const uint8_t* panel, size_t first_row,
                      float* out) {
    const size_t k = static_cast<size_t>(args.k);
    Records records{args.activations + first_row * args.activation_stride, args.activation_stride};
    __m256 totals[kRows][2] = {};
    for (size_t b = 0; b * kBlockK < k; ++b, records.first += kActivationBlockBytes) {
      const size_t groups = GroupsOfBlock(k, b);
      const BlockView block{panel, panel + HeaderBytes(kFormat, groups), groups, args.bf16_scales};
      BlockTile<Dot, kFormat, kRows>::AddBlock(block, records, totals);
      panel += BlockBytes(kFormat, groups);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(out + r * args.out_stride, totals[r][0]);
      _mm256_storeu_ps(out + r * args.out_stride + 8, totals[r][1]);
    }
  }
};

}  // namespace
}  // namespace atelier
