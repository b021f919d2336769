#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "libs/base/float16.h"
#include "libs/kernels/block_pack.h"
#include "libs/testing/packed_weights.h"

namespace atelier::testing {

// Weights of a block-quantised method in which every field takes every value that it can: all
// codes, scales of both signs and of many sizes. A pure function of (seed, row, column).
class RandomQuantSource final : public QuantSource {
 public:
  RandomQuantSource(Method method, uint32_t seed) : format_(*BlockFormatOf(method)), seed_(seed) {}

  void Read(int row, int column, int count, QuantBlock& out) const override {
    const int group = format_.group;
    QuantBlock block{};
    for (int i = 0; i < count; ++i) {
      const int from = (column + i) % 256;
      if (i == 0 || from == 0) Fill(row, (column + i) / 256, block);
      out.codes[i] = block.codes[from];
      if (i % group == 0) CopyGroup(block, from / group, out, i / group);
    }
    out.super = block.super;
    out.super_min = block.super_min;
  }

  // What a weight is, in double, from the words of BlockFormat and nothing of the layout.
  static double Weight(const BlockFormat& format, const QuantBlock& block, int k) {
    const size_t j = static_cast<size_t>(k / format.group);
    return Scale(format, block, j) * Value(format, block, k) + Min(format, block, j);
  }
  // The magnitudes of its terms, which may cancel.
  static double Terms(const BlockFormat& format, const QuantBlock& block, int k) {
    const size_t j = static_cast<size_t>(k / format.group);
    return std::fabs(Scale(format, block, j) * Value(format, block, k)) +
           std::fabs(Min(format, block, j));
  }

 private:
  void Fill(int row, int block, QuantBlock& out) const {
    std::mt19937 random(seed_ * 7919u + static_cast<uint32_t>(row) * 104729u +
                        static_cast<uint32_t>(block));
    for (uint8_t& code : out.codes) code = Bits(random, format_.bits);
    const bool nibble = format_.scale == ScaleCoding::kSuperNibble;
    for (size_t j = 0; j < 16; ++j) {
      out.half_scales[j] = Half(random);
      out.half_mins[j] = Half(random);
      out.zero_codes[j] = Bits(random, 4);
      out.exponents[j] = static_cast<uint8_t>(118 + random() % 12);
      out.sub_scales[j] = Bits(random, nibble ? 4 : 8);
      out.sub_mins[j] = Bits(random, nibble ? 4 : 8);
    }
    out.super = Half(random);
    out.super_min = Half(random);
  }
  static void CopyGroup(const QuantBlock& from, int i, QuantBlock& to, int j) {
    to.half_scales[j] = from.half_scales[i];
    to.half_mins[j] = from.half_mins[i];
    to.zero_codes[j] = from.zero_codes[i];
    to.exponents[j] = from.exponents[i];
    to.sub_scales[j] = from.sub_scales[i];
    to.sub_mins[j] = from.sub_mins[i];
  }
  static uint8_t Bits(std::mt19937& random, int bits) {
    return static_cast<uint8_t>(random() & ((1u << bits) - 1));
  }
  // An fp16 with an exponent around 2^-6.
  static uint16_t Half(std::mt19937& random) {
    const uint32_t bits = static_cast<uint32_t>(random());
    return static_cast<uint16_t>((bits & 0x83ffu) | (7 + (bits >> 16) % 5) << 10);
  }
  static double F16(uint16_t bits) { return static_cast<double>(Float16ToFloat(bits)); }

  static double Value(const BlockFormat& format, const QuantBlock& block, int k) {
    const uint8_t code = block.codes[k];
    switch (format.table) {
      case CodeTable::kNone:
        return format.zero_shift == 0 ? code : code - (1 << format.zero_shift);
      case CodeTable::kIq4Nl:
        return Iq4Nl(code);
      case CodeTable::kFp4:
        return 2 * Fp4(code);
    }
    return 0;
  }
  static double Scale(const BlockFormat& format, const QuantBlock& block, size_t j) {
    switch (format.scale) {
      case ScaleCoding::kHalf:
        return F16(block.half_scales[j]);
      case ScaleCoding::kE8M0:
        return block.exponents[j] == 255 ? std::nan("") : std::ldexp(0.5, block.exponents[j] - 127);
      case ScaleCoding::kSuperU:
      case ScaleCoding::kSuperNibble:
        return F16(block.super) * block.sub_scales[j];
      case ScaleCoding::kSuperS:
        return F16(block.super) * static_cast<int8_t>(block.sub_scales[j]);
    }
    return 0;
  }
  static double Min(const BlockFormat& format, const QuantBlock& block, size_t j) {
    switch (format.min) {
      case MinCoding::kNone:
        return 0;
      case MinCoding::kHalf:
        return F16(block.half_mins[j]);
      case MinCoding::kZeroCode:
        return -Scale(format, block, j) * block.zero_codes[j];
      case MinCoding::kSuperU:
      case MinCoding::kSuperNibble:
        return -F16(block.super_min) * block.sub_mins[j];
    }
    return 0;
  }
  static double Iq4Nl(int code) {
    constexpr int kValues[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
    return kValues[code];
  }
  // E2M1: sign, two bits of exponent (bias 1), one of mantissa.
  static double Fp4(int code) {
    const int exponent = code >> 1 & 3;
    const double magnitude =
        exponent == 0 ? 0.5 * (code & 1) : std::ldexp(1 + 0.5 * (code & 1), exponent - 1);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }

  const BlockFormat format_;
  const uint32_t seed_;
};

// FP8 weights with all codes but NaN and scales of many sizes. A pure function of (seed, row,
// column).
class RandomFp8Source final : public QuantSource {
 public:
  explicit RandomFp8Source(uint32_t seed) : seed_(seed) {}

  void Read(int row, int column, int, QuantBlock& out) const override {
    std::mt19937 random(seed_ * 7919u + static_cast<uint32_t>(row) * 104729u +
                        static_cast<uint32_t>(column));
    for (uint8_t& code : out.codes) {
      do code = static_cast<uint8_t>(random());
      while ((code & 0x7f) == 0x7f);
    }
    for (uint8_t& exponent : out.exponents) exponent = static_cast<uint8_t>(110 + random() % 12);
    for (float& scale : out.float_scales) {
      scale = std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000.0f, -6);
      scale = random() % 2 == 0 ? scale : -scale;
    }
  }

  // E4M3: sign, four bits of exponent (bias 7), three of mantissa; no infinities.
  static double Value(uint8_t code) {
    const int exponent = code >> 3 & 15;
    if ((code & 0x7f) == 0x7f) return std::nan("");
    const double magnitude =
        exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(1 + (code & 7) / 8.0, exponent - 7);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }

 private:
  const uint32_t seed_;
};

// Random weights of any method.
inline PackedWeights RandomWeights(Method method, int n, int k, uint32_t seed) {
  if (BlockFormatOf(method) != nullptr) {
    return PackedWeights(method, n, k, RandomQuantSource(method, seed));
  }
  if (IsFp8(method)) return PackedWeights(method, n, k, RandomFp8Source(seed));
  return PackedWeights(method, n, k, RandomBf16Values(static_cast<size_t>(n * k), seed));
}

}  // namespace atelier::testing
