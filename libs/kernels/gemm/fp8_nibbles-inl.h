#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_layout-inl.h"

// How E4M3 becomes bf16 with tables of 16 bytes: 120 more in the exponent is an even number, so of
// a normal number the upper byte follows from the upper half of the code and the lower byte is its
// lower half moved up. Subnormal codes have an upper half that is zero but for the sign; what
// they need differently follows from their lower half. In an anonymous namespace, as
// panel_loop-inl.h.

namespace atelier {
namespace {

struct NibbleTables {
  alignas(16) uint8_t high[16];       // upper byte, by the upper half of the code
  alignas(16) uint8_t less_high[16];  // to subtract from it, by the lower half
  alignas(16) uint8_t flip_low[16];   // bits to flip in the lower byte, by the lower half
};

constexpr NibbleTables MakeNibbleTables() {
  NibbleTables tables{};
  for (uint32_t half = 0; half < 16; ++half) {
    tables.high[half] = static_cast<uint8_t>((half & 8) << 4 | (60 + (half & 7)));
    const uint32_t exact = Fp8ToBf16(half);
    tables.less_high[half] = static_cast<uint8_t>(60 - (exact >> 8));
    tables.flip_low[half] = static_cast<uint8_t>((half << 4) ^ (exact & 0xff));
  }
  return tables;
}
constexpr NibbleTables kNibbleTables = MakeNibbleTables();

}  // namespace
}  // namespace atelier
