#pragma once

#include <cstddef>
#include <cstdint>

// Where everything lies in a panel of an FP8 matrix (docs/weight-layout.md). In an anonymous
// namespace, as panel_loop-inl.h.
//
// A panel is a sequence of blocks of 128 k of its 16 output rows (the last may be shorter by whole
// groups of 32): 64 bytes of scales, where the method has them per block, then a row of 64 codes
// for each quad of k.

namespace atelier {
namespace {

enum class Fp8Scales {
  kBlocks,  // 16 fp32 in every block
  kRows,    // 16 fp32 before the first block
  kGroups   // 4 x 16 E8M0 in every block, one for each 32 k
};

constexpr size_t kFp8BlockK = 128;
constexpr size_t kFp8GroupK = 32;
constexpr size_t kFp8GroupCodes = kFp8GroupK * 16;  // bytes
constexpr size_t kFp8ScaleBytes = 64;               // of a block, or of a panel

constexpr size_t Fp8PanelHeader(Fp8Scales scales) {
  return scales == Fp8Scales::kRows ? kFp8ScaleBytes : 0;
}
constexpr size_t Fp8BlockHeader(Fp8Scales scales) {
  return scales == Fp8Scales::kRows ? 0 : kFp8ScaleBytes;
}

// How far ahead of the codes being widened the next ones are asked for: a block and a half.
constexpr size_t kFp8Ahead = 3 * 1024;

// Groups of 32 k, the last padded with zeros.
constexpr size_t Fp8Groups(size_t k) { return (k + kFp8GroupK - 1) / kFp8GroupK; }
constexpr size_t Fp8GroupsOfBlock(size_t k, size_t block) {
  const size_t left = Fp8Groups(k) - block * (kFp8BlockK / kFp8GroupK);
  return left < kFp8BlockK / kFp8GroupK ? left : kFp8BlockK / kFp8GroupK;
}
constexpr size_t Fp8BlockBytes(Fp8Scales scales, size_t groups) {
  return Fp8BlockHeader(scales) + groups * kFp8GroupCodes;
}
constexpr size_t Fp8PanelBytes(Fp8Scales scales, size_t k) {
  const size_t num_blocks = (k + kFp8BlockK - 1) / kFp8BlockK;
  return Fp8PanelHeader(scales) + num_blocks * Fp8BlockHeader(scales) +
         Fp8Groups(k) * kFp8GroupCodes;
}

// Of input k of a block, in the codes of the block. The pairs (4 q, 4 q + 1) of four output rows
// are 8 bytes and the pairs (4 q + 2, 4 q + 3) of the same rows the next 8, so that interleaving
// with a second byte within 16 bytes (vpunpcklbw, vpunpckhbw) gives pairs of bf16 in their order.
constexpr size_t Fp8CodeOffset(size_t row, size_t k) {
  return k / 4 * 64 + row / 4 * 16 + k % 4 / 2 * 8 + row % 4 * 2 + k % 2;
}

// The bf16 of a code without its sign: exact, and never subnormal.
constexpr uint32_t Fp8ToBf16(uint32_t magnitude) {
  constexpr uint32_t kBias = 127 - 7;
  const uint32_t exponent = magnitude >> 3, mantissa = magnitude & 7;
  if (exponent > 0) return (exponent + kBias) << 7 | mantissa << 4;
  if (mantissa == 0) return 0;
  const uint32_t power = mantissa < 2 ? 0 : mantissa < 4 ? 1 : 2;  // mantissa >= 2^power
  return (kBias - 2 + power) << 7 | ((mantissa << 7 >> power) & 0x7f);
}

}  // namespace
}  // namespace atelier
