#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_kernel_list-inl.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// Block-quantised weights times int8 activations in AVX-512: a zmm is one quad (4 k) of a panel's
// 16 output rows. Dot is the one instruction set's sum of u8 x s8 products:
// Dot::Add<kMaxCode>(sums, codes, activations). Order of operations: docs/numerics.md. In an
// anonymous namespace, as panel_loop-inl.h.

namespace atelier {
namespace {

constexpr int kBlockRows = 8;  // their sums, parts and four quads of codes fill the registers
// Activation rows that stay in L2 while all panels pass over them.
constexpr size_t kBlockChunkBytes = 256 * 1024;

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

inline int32_t LoadInt(const uint8_t* at) {
  int32_t value;
  __builtin_memcpy(&value, at, sizeof(value));
  return value;
}

// Sum of the activations of scale group j, from the record's sums.
template <BlockFormat kFormat>
inline int32_t GroupSum(const uint8_t* record, size_t j) {
  if constexpr (kFormat.group == 16) return LoadInt(record + kActivationSums16 + j * 4);
  constexpr size_t kCount = static_cast<size_t>(kFormat.group) / 32;
  int32_t sum = 0;
  for (size_t i = 0; i < kCount; ++i) {
    sum += LoadInt(record + kActivationSums32 + (j * kCount + i) * 4);
  }
  return sum;
}

// What kRows rows have in one block, before the scale of their activations.
template <typename Dot, BlockFormat kFormat, int kRows>
inline void AddGroup(const BlockView& block, size_t j, const uint8_t* records, size_t stride,
                     __m512 parts[kRows]) {
  constexpr size_t kHalves = static_cast<size_t>(kFormat.group) / 16;
  __m512i sums[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
    sums[r] = kFormat.zero_shift == 0
                  ? _mm512_setzero_si512()
                  : _mm512_set1_epi32(
                        -(GroupSum<kFormat>(records + r * stride, j) * (1 << kFormat.zero_shift)));
  }
#pragma GCC unroll 2
  for (size_t i = 0; i < kHalves; ++i) {
    const size_t half = j * kHalves + i;
    __m512i quads[4];
    UnpackHalf<kFormat.bits>(block.codes + half / 2 * GroupCodeBytes(kFormat), half % 2, quads);
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; ++q) {
      const __m512i codes = LookUp<kFormat.table>(quads[q]);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i activations =
            _mm512_set1_epi32(LoadInt(records + r * stride + half * 16 + q * 4));
        sums[r] = Dot::template Add<kMaxCode<kFormat>>(sums[r], codes, activations);
      }
    }
  }
  const __m512 scales = ScalesOf<kFormat>(block, j);
  const __m512 mins = MinsOf<kFormat>(block, j, scales);
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
    parts[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), scales, parts[r]);
    if constexpr (kFormat.min != MinCoding::kNone) {
      const float sum = static_cast<float>(GroupSum<kFormat>(records + r * stride, j));
      parts[r] = _mm512_fmadd_ps(_mm512_set1_ps(sum), mins, parts[r]);
    }
  }
}

// kRows rows times one panel.
template <typename Dot, BlockFormat kFormat, int kRows>
inline void ComputePanel(const MicroKernelArgs& args, const uint8_t* panel, size_t first_row,
                         float* out) {
  const size_t k = static_cast<size_t>(args.k);
  const uint8_t* records = args.activations + first_row * args.activation_stride;
  __m512 totals[kRows];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) totals[r] = _mm512_setzero_ps();
  for (size_t b = 0; b * kBlockK < k; ++b, records += kActivationBlockBytes) {
    const size_t groups = GroupsOfBlock(k, b);
    const BlockView block{panel, panel + HeaderBytes(kFormat, groups), groups, args.bf16_scales};
    __m512 parts[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) parts[r] = _mm512_setzero_ps();
    for (size_t j = 0; j < NumScales(kFormat, groups); ++j) {
      AddGroup<Dot, kFormat, kRows>(block, j, records, args.activation_stride, parts);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      float scale;
      __builtin_memcpy(&scale, records + r * args.activation_stride + kActivationScale,
                       sizeof(scale));
      totals[r] = _mm512_fmadd_ps(parts[r], _mm512_set1_ps(scale), totals[r]);
    }
    panel += BlockBytes(kFormat, groups);
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * args.out_stride, totals[r]);
}

// Blocks of kRows rows while there are enough left, then smaller ones.
template <typename Dot, BlockFormat kFormat, int kRows>
inline void ComputeRows(const MicroKernelArgs& args, int panel, size_t begin, size_t end) {
  const uint8_t* weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  float* out = args.out + static_cast<size_t>(panel) * 16;
  for (; end - begin >= kRows; begin += kRows) {
    ComputePanel<Dot, kFormat, kRows>(args, weights, begin, out + begin * args.out_stride);
  }
  if constexpr (kRows > 1) {
    if (begin < end) ComputeRows<Dot, kFormat, kRows / 2>(args, panel, begin, end);
  }
}

template <typename Dot, BlockFormat kFormat>
void BlockGemm(const MicroKernelArgs& args) {
  const size_t rows = static_cast<size_t>(args.rows);
  size_t chunk = kBlockChunkBytes / args.activation_stride / kBlockRows * kBlockRows;
  if (chunk < kBlockRows) chunk = kBlockRows;
  for (size_t begin = 0; begin < rows; begin += chunk) {
    const size_t end = rows - begin < chunk ? rows : begin + chunk;
    for (int panel = 0; panel < args.num_panels; ++panel) {
      ComputeRows<Dot, kFormat, kBlockRows>(args, panel, begin, end);
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
