#pragma once

#include <cstdint>

// How a block-quantised weight matrix is coded. Plain values without functions, so that files of
// any instruction set may include them (micro_kernel.h says why).

namespace atelier {

// Where the scale of a group of k comes from; every one is per output row.
enum class ScaleCoding : uint8_t {
  kHalf,         // 16 bits: fp16, or bf16 where MicroKernelArgs::bf16_scales says so
  kE8M0,         // 8 bits: a power of two times 1/2
  kSuperU,       // unsigned byte times the fp16 of the block of 256
  kSuperS,       // signed byte times the fp16 of the block of 256
  kSuperNibble,  // low four bits of a byte times the fp16 of the block of 256
};

// What is added per group beside scale * code.
enum class MinCoding : uint8_t {
  kNone,
  kHalf,         // + 16-bit value
  kZeroCode,     // - scale * unsigned byte
  kSuperU,       // - unsigned byte * second fp16 of the block of 256
  kSuperNibble,  // - high four bits of the scale's byte * second fp16 of the block of 256
};

enum class CodeTable : uint8_t { kNone, kIq4Nl, kFp4 };

// weight = scale * (value(code) - zero) + min, with value(code) = table[code], or the code itself.
struct BlockFormat {
  int bits;        // of a code: 2, 3, 4, 5, 6 or 8
  int group;       // k that share a scale: 16, 32, 64 or 128
  int zero_shift;  // zero = 2^zero_shift; 0 = none (the formats with mins)
  ScaleCoding scale;
  MinCoding min;
  CodeTable table;
};

// Kernels take these as template arguments; the names are those of Method.
inline constexpr BlockFormat kInt4G32Format{
    4, 32, 3, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kInt4G64Format{
    4, 64, 3, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kInt4G128Format{
    4, 128, 3, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kInt4G32ZFormat{
    4, 32, 0, ScaleCoding::kHalf, MinCoding::kZeroCode, CodeTable::kNone};
inline constexpr BlockFormat kInt4G64ZFormat{
    4, 64, 0, ScaleCoding::kHalf, MinCoding::kZeroCode, CodeTable::kNone};
inline constexpr BlockFormat kInt4G128ZFormat{
    4, 128, 0, ScaleCoding::kHalf, MinCoding::kZeroCode, CodeTable::kNone};
// Twice the fp4 values are integers: the halving is in the exponent of the scale.
inline constexpr BlockFormat kMxFp4Format{
    4, 32, 4, ScaleCoding::kE8M0, MinCoding::kNone, CodeTable::kFp4};
inline constexpr BlockFormat kQ8_0Format{
    8, 32, 7, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kQ4_0Format{
    4, 32, 3, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kQ4_1Format{
    4, 32, 0, ScaleCoding::kHalf, MinCoding::kHalf, CodeTable::kNone};
inline constexpr BlockFormat kQ5_0Format{
    5, 32, 4, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kQ5_1Format{
    5, 32, 0, ScaleCoding::kHalf, MinCoding::kHalf, CodeTable::kNone};
inline constexpr BlockFormat kQ2_KFormat{
    2, 16, 0, ScaleCoding::kSuperNibble, MinCoding::kSuperNibble, CodeTable::kNone};
inline constexpr BlockFormat kQ3_KFormat{
    3, 16, 2, ScaleCoding::kSuperS, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kQ4_KFormat{
    4, 32, 0, ScaleCoding::kSuperU, MinCoding::kSuperU, CodeTable::kNone};
inline constexpr BlockFormat kQ5_KFormat{
    5, 32, 0, ScaleCoding::kSuperU, MinCoding::kSuperU, CodeTable::kNone};
inline constexpr BlockFormat kQ6_KFormat{
    6, 16, 5, ScaleCoding::kSuperS, MinCoding::kNone, CodeTable::kNone};
inline constexpr BlockFormat kIq4NlFormat{
    4, 32, 7, ScaleCoding::kHalf, MinCoding::kNone, CodeTable::kIq4Nl};
inline constexpr BlockFormat kIq4XsFormat{
    4, 32, 7, ScaleCoding::kSuperS, MinCoding::kNone, CodeTable::kIq4Nl};

}  // namespace atelier
