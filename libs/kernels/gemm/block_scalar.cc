#include <cmath>
#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/load-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The oracle of the block-quantised methods: one weight at a time, by the words of
// block_layout-inl.h. Every other kernel gives the same bits.

namespace atelier {
namespace {

uint32_t RawCode(int bits, const uint8_t* group, size_t quad, size_t byte) {
  const int low_bits = LowPlaneBits(bits);
  const size_t per_byte = static_cast<size_t>(8 / low_bits);
  const uint32_t low_byte = group[quad / per_byte * 64 + byte];
  const uint32_t low =
      low_byte >> (quad % per_byte * static_cast<size_t>(low_bits)) & ((1u << low_bits) - 1);
  const int high_bits = bits - low_bits;
  if (high_bits == 0) return low;
  const size_t high_per_byte = static_cast<size_t>(8 / high_bits);
  const uint32_t high_byte = group[HighPlaneOffset(bits) + quad / high_per_byte * 64 + byte];
  const uint32_t high = high_byte >> (quad % high_per_byte * static_cast<size_t>(high_bits)) &
                        ((1u << high_bits) - 1);
  return low | high << low_bits;
}

int32_t Code(const BlockFormat& format, const uint8_t* group, size_t quad, size_t byte) {
  const uint32_t raw = RawCode(format.bits, group, quad, byte);
  switch (format.table) {
    case CodeTable::kNone:
      return static_cast<int32_t>(raw);
    case CodeTable::kIq4Nl:
      return kIq4NlCodes[raw];
    case CodeTable::kFp4:
      return kFp4Codes[raw];
  }
  return 0;
}

float Half(const uint8_t* at, bool bf16) {
  const uint16_t bits = LoadAs<uint16_t>(at);
  return bf16 ? ToFloat(BFloat16{bits}) : Float16ToFloat(bits);
}

// Half of 2^(exponent - 127); 255 is NaN.
float E8M0(uint8_t exponent) {
  return exponent == 255 ? std::nanf("") : std::ldexp(1.0f, exponent - 128);
}

// One block of one panel.
struct Block {
  const BlockFormat& format;
  const uint8_t* data;
  size_t groups;  // of 32 k
  bool bf16_scales;

  const uint8_t* Scales(size_t j) const {
    return data + ScalesOffset(format) + j * ScaleStride(format);
  }
  const uint8_t* Mins(size_t j) const {
    return data + MinsOffset(format, groups) + j * MinStride(format);
  }
  float Super(size_t row) const { return Half(data + row * 2, false); }
  float SuperMin(size_t row) const { return Half(data + SuperMinOffset(format) + row * 2, false); }

  float Scale(size_t j, size_t row) const {
    const uint8_t* at = Scales(j);
    switch (format.scale) {
      case ScaleCoding::kHalf:
        return Half(at + row * 2, bf16_scales);
      case ScaleCoding::kE8M0:
        return E8M0(at[row]);
      case ScaleCoding::kSuperU:
        return Super(row) * static_cast<float>(at[row]);
      case ScaleCoding::kSuperS:
        return Super(row) * static_cast<float>(static_cast<int8_t>(at[row]));
      case ScaleCoding::kSuperNibble:
        return Super(row) * static_cast<float>(at[row] & 15);
    }
    return 0;
  }

  float Min(size_t j, size_t row) const {
    switch (format.min) {
      case MinCoding::kNone:
        return 0;
      case MinCoding::kHalf:
        return Half(Mins(j) + row * 2, bf16_scales);
      case MinCoding::kZeroCode:
        return -(Scale(j, row) * static_cast<float>(Mins(j)[row]));
      case MinCoding::kSuperU:
        return -(SuperMin(row) * static_cast<float>(Mins(j)[row]));
      case MinCoding::kSuperNibble:
        return -(SuperMin(row) * static_cast<float>(Scales(j)[row] >> 4));
    }
    return 0;
  }

  // Sum of code * activation over the k of scale group j, the zero taken off.
  int32_t Dot(size_t j, size_t row, const uint8_t* activations) const {
    const size_t begin = j * static_cast<size_t>(format.group);
    int32_t sum = 0;
    for (size_t k = begin; k < begin + static_cast<size_t>(format.group); ++k) {
      const uint8_t* group = data + HeaderBytes(format, groups) + k / 32 * GroupCodeBytes(format);
      const int32_t zero = format.zero_shift == 0 ? 0 : 1 << format.zero_shift;
      const int32_t code = Code(format, group, k % 32 / 4, row * 4 + k % 4) - zero;
      sum += code * static_cast<int8_t>(activations[k]);
    }
    return sum;
  }
};

int32_t SumOfActivations(const BlockFormat& format, size_t j, const uint8_t* activations) {
  int32_t sum = 0;
  const size_t begin = j * static_cast<size_t>(format.group);
  for (size_t k = begin; k < begin + static_cast<size_t>(format.group); ++k) {
    sum += static_cast<int8_t>(activations[k]);
  }
  return sum;
}

// The order of operations of every block kernel (docs/numerics.md).
float AddBlock(const Block& block, size_t row, const uint8_t* activations, float total) {
  float part = 0;
  for (size_t j = 0; j < NumScales(block.format, block.groups); ++j) {
    const float dot = static_cast<float>(block.Dot(j, row, activations));
    part = std::fma(dot, block.Scale(j, row), part);
    if (block.format.min == MinCoding::kNone) continue;
    const float sum = static_cast<float>(SumOfActivations(block.format, j, activations));
    part = std::fma(sum, block.Min(j, row), part);
  }
  return std::fma(part, LoadAs<float>(activations + kActivationScale), total);
}

float Product(const MicroKernelArgs& args, int row, int column) {
  const BlockFormat& format = *args.format;
  const size_t k = static_cast<size_t>(args.k);
  const uint8_t* at = args.panels + static_cast<size_t>(column / 16) * args.panel_bytes;
  const uint8_t* activations = args.activations + static_cast<size_t>(row) * args.activation_stride;
  float total = 0;
  for (size_t b = 0; b * kBlockK < k; ++b) {
    const Block block{format, at, GroupsOfBlock(k, b), args.bf16_scales};
    total = AddBlock(block, static_cast<size_t>(column % 16),
                     activations + b * kActivationBlockBytes, total);
    at += BlockBytes(format, block.groups);
  }
  return total;
}

}  // namespace

void BlockScalar(const MicroKernelArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    for (int c = 0; c < args.num_panels * 16; ++c) {
      args.out[static_cast<size_t>(r) * args.out_stride + static_cast<size_t>(c)] =
          Product(args, r, c);
    }
  }
}

}  // namespace atelier
