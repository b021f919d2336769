#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_format.h"

// Where everything lies in a panel of a block-quantised matrix, and in the activation rows that
// such matrices multiply (docs/weight-layout.md). In an anonymous namespace, as panel_loop-inl.h.
//
// A panel is a sequence of blocks of 256 k of its 16 output rows (the last may be shorter by whole
// groups of 32): a header of scales and mins, padded to 64 bytes, then the codes of one group of 32
// k after the other. The codes of a group are bit planes; byte 4 c + i of a row of 64 bytes belongs
// to output row c and to k = 4 q + i for the "quad" q = 0…7 of the group:
//   plane of 4 bits: row j holds quad 2 j in its low and quad 2 j + 1 in its high half
//   plane of 2 bits: row j holds quad 4 j + t in the bits 2 t and 2 t + 1
//   plane of 1 bit:  bit t belongs to quad t
//   plane of 8 bits: row q holds quad q
// 5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1, the low bits' plane first.

namespace atelier {
namespace {

constexpr int kBlockK = 256;
constexpr int kGroupsPerBlock = 8;  // of 32 k

constexpr bool IsSuper(ScaleCoding scale) {
  return scale == ScaleCoding::kSuperU || scale == ScaleCoding::kSuperS ||
         scale == ScaleCoding::kSuperNibble;
}
constexpr bool IsSuper(MinCoding min) {
  return min == MinCoding::kSuperU || min == MinCoding::kSuperNibble;
}

// Number of scales of one output row in a block of `groups` groups of 32 k.
constexpr size_t NumScales(const BlockFormat& format, size_t groups) {
  return groups * 32 / static_cast<size_t>(format.group);
}

// The header: fp16 d of the 16 rows, fp16 of their mins, scales of group 0 of the 16 rows, of group
// 1, …, then mins likewise; what a format does not have takes no room.
constexpr size_t SuperMinOffset(const BlockFormat&) { return 32; }
constexpr size_t ScalesOffset(const BlockFormat& format) {
  return (IsSuper(format.scale) ? size_t{32} : 0) + (IsSuper(format.min) ? size_t{32} : 0);
}
constexpr size_t ScaleStride(const BlockFormat& format) {
  return format.scale == ScaleCoding::kHalf ? 32 : 16;
}
constexpr size_t MinsOffset(const BlockFormat& format, size_t groups) {
  return ScalesOffset(format) + NumScales(format, groups) * ScaleStride(format);
}
constexpr size_t MinStride(const BlockFormat& format) {
  switch (format.min) {
    case MinCoding::kHalf:
      return 32;
    case MinCoding::kZeroCode:
    case MinCoding::kSuperU:
      return 16;
    case MinCoding::kNone:
    case MinCoding::kSuperNibble:
      return 0;
  }
  return 0;
}
constexpr size_t HeaderBytes(const BlockFormat& format, size_t groups) {
  const size_t bytes = MinsOffset(format, groups) + NumScales(format, groups) * MinStride(format);
  return (bytes + 63) / 64 * 64;
}

constexpr size_t GroupCodeBytes(const BlockFormat& format) {
  return static_cast<size_t>(format.bits) * 64;
}
constexpr size_t BlockBytes(const BlockFormat& format, size_t groups) {
  return HeaderBytes(format, groups) + groups * GroupCodeBytes(format);
}
constexpr size_t BlockPanelBytes(const BlockFormat& format, size_t k) {
  const size_t rest = k % kBlockK / 32;
  return k / kBlockK * BlockBytes(format, kGroupsPerBlock) +
         (rest == 0 ? 0 : BlockBytes(format, rest));
}
constexpr size_t GroupsOfBlock(size_t k, size_t block) {
  const size_t left = k - block * kBlockK;
  return left >= kBlockK ? kGroupsPerBlock : left / 32;
}

// Bits of a code in the plane that holds its low bits; the plane of the others follows it.
constexpr int LowPlaneBits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
constexpr size_t HighPlaneOffset(int bits) { return static_cast<size_t>(LowPlaneBits(bits)) * 64; }

// What the kernels multiply: the value of a code plus 2^zero_shift. IQ4_NL's values are a published
// constant; FP4's are twice E2M1.
constexpr uint8_t kIq4NlCodes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                     129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kFp4Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// An activation row: a record per block of 256 k.
constexpr size_t kActivationBlockBytes = 384;
constexpr size_t kActivationSums32 = 256;  // int32 [8], sums of 32 codes
constexpr size_t kActivationSums16 = 288;  // int32 [16], sums of 16 codes
constexpr size_t kActivationScale = 352;   // fp32
// [0, 256): the int8 codes, zero beyond K; [356, 384): zero.

}  // namespace
}  // namespace atelier
