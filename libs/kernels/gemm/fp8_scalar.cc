#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "libs/base/float16.h"
#include "libs/kernels/gemm/fp8_layout-inl.h"
#include "libs/kernels/gemm/load-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The oracle of the FP8 methods: one weight at a time, by the words of fp8_layout-inl.h. The fp32
// kernels of every instruction set give the same bits.

namespace atelier {
namespace {

// E4M3 without infinities: bias 7, subnormal below 2^-6. Exact in fp32.
float E4M3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

float E8M0(uint8_t exponent) {
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : std::ldexp(1.0f, exponent - 127);
}

// Of inputs [begin, end) of a block: even and odd k apart, both ascending, added at the end.
float Dot(const uint8_t* codes, size_t column, const uint8_t* activations, size_t begin,
          size_t end) {
  float sums[2] = {0, 0};
  for (size_t k = begin; k < end; ++k) {
    const float activation = ToFloat(BFloat16{LoadAs<uint16_t>(activations + k * 2)});
    float& sum = sums[k % 2];
    sum = std::fma(E4M3(codes[Fp8CodeOffset(column, k)]), activation, sum);
  }
  return sums[0] + sums[1];
}

template <Fp8Scales kScales>
float AddBlock(const uint8_t* block, size_t groups, size_t column, const uint8_t* activations,
               float total) {
  const uint8_t* codes = block + Fp8BlockHeader(kScales);
  if constexpr (kScales == Fp8Scales::kGroups) {
    for (size_t g = 0; g < groups; ++g) {
      const float dot = Dot(codes, column, activations, g * kFp8GroupK, (g + 1) * kFp8GroupK);
      total = std::fma(dot, E8M0(block[g * 16 + column]), total);
    }
    return total;
  }
  const float dot = Dot(codes, column, activations, 0, groups * kFp8GroupK);
  if constexpr (kScales == Fp8Scales::kRows) return total + dot;
  return std::fma(dot, LoadAs<float>(block + column * 4), total);
}

template <Fp8Scales kScales>
float Product(const MicroKernelArgs& args, size_t row, size_t column) {
  const size_t k = static_cast<size_t>(args.k);
  const uint8_t* panel = args.panels + column / 16 * args.panel_bytes;
  const uint8_t* activations = args.activations + row * args.activation_stride;
  const uint8_t* at = panel + Fp8PanelHeader(kScales);
  float total = 0;
  for (size_t b = 0; b * kFp8BlockK < k; ++b) {
    const size_t groups = Fp8GroupsOfBlock(k, b);
    total = AddBlock<kScales>(at, groups, column % 16, activations + b * kFp8BlockK * 2, total);
    at += Fp8BlockBytes(kScales, groups);
  }
  if constexpr (kScales == Fp8Scales::kRows) return total * LoadAs<float>(panel + column % 16 * 4);
  return total;
}

template <Fp8Scales kScales>
void Fp8Gemm(const MicroKernelArgs& args) {
  const size_t columns = static_cast<size_t>(args.num_panels) * 16;
  for (size_t r = 0; r < static_cast<size_t>(args.rows); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      args.out[r * args.out_stride + c] = Product<kScales>(args, r, c);
    }
  }
}

}  // namespace

extern constexpr Fp8Kernels kFp8ScalarKernels = {
    Fp8Gemm<Fp8Scales::kBlocks>, Fp8Gemm<Fp8Scales::kRows>, Fp8Gemm<Fp8Scales::kGroups>};

}  // namespace atelier
