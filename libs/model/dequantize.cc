#include "libs/model/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "libs/base/float16.h"

namespace atelier {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kIq4Nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
// Twice the E2M1 values; the zero of both signs is +0.
constexpr float kTwiceFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float Signed(uint8_t bits) { return static_cast<float>(static_cast<int8_t>(bits)); }

// 2^(exponent - 127), of which the smallest is subnormal; 255 is NaN.
float PowerOfTwo(int exponent) {
  if (exponent == 255) return kNan;
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : static_cast<uint32_t>(exponent) << 23);
}

// 2^(exponent - 128): half of that.
float HalfPower(int exponent) {
  if (exponent == 0) return std::bit_cast<float>(0x00200000u);
  return exponent == 255 ? kNan : PowerOfTwo(exponent - 1);
}

// E4M3 without infinities: sign, four bits of exponent (bias 7), three of mantissa.
float Fp8(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7f) == 0x7f) return kNan;
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * 0x1p-9f
                              : std::bit_cast<float>((exponent + 120u) << 23 | mantissa << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

bool IsInt4(Method method) { return method >= Method::kINT4G32 && method <= Method::kINT4G128Z; }
bool HasZeroCodes(Method method) {
  return method >= Method::kINT4G32Z && method <= Method::kINT4G128Z;
}
bool IsFp8(Method method) { return method >= Method::kFP8_BLOCK && method <= Method::kMXFP8; }

// Inputs that share a scale.
int GroupOf(Method method) {
  switch (method) {
    case Method::kQ2_K:
    case Method::kQ3_K:
    case Method::kQ6_K:
      return 16;
    case Method::kINT4G64:
    case Method::kINT4G64Z:
      return 64;
    case Method::kINT4G128:
    case Method::kINT4G128Z:
    case Method::kFP8_BLOCK:
      return 128;
    case Method::kFP8_ROW:
      return 256;  // all of a block
    default:
      return 32;
  }
}

float ScaleOf(Method method, bool bf16_scales, const QuantBlock& block, int g) {
  switch (method) {
    case Method::kMXFP4:
      return HalfPower(block.exponents[g]);
    case Method::kMXFP8:
      return PowerOfTwo(block.exponents[g]);
    case Method::kFP8_BLOCK:
    case Method::kFP8_ROW:
      return block.float_scales[g];
    case Method::kQ2_K:
    case Method::kQ4_K:
    case Method::kQ5_K:
      return Float16ToFloat(block.super) * static_cast<float>(block.sub_scales[g]);
    case Method::kQ3_K:
    case Method::kQ6_K:
    case Method::kIQ4_XS:
      return Float16ToFloat(block.super) * Signed(block.sub_scales[g]);
    default:
      return bf16_scales ? ToFloat(BFloat16{block.half_scales[g]})
                         : Float16ToFloat(block.half_scales[g]);
  }
}

bool HasMin(Method method) {
  switch (method) {
    case Method::kQ4_1:
    case Method::kQ5_1:
    case Method::kQ2_K:
    case Method::kQ4_K:
    case Method::kQ5_K:
      return true;
    default:
      return false;
  }
}

// To be added.
float MinOf(Method method, const QuantBlock& block, int g) {
  if (method == Method::kQ4_1 || method == Method::kQ5_1) {
    return Float16ToFloat(block.half_mins[g]);
  }
  return -(Float16ToFloat(block.super_min) * static_cast<float>(block.sub_mins[g]));
}

int ZeroOf(Method method, const QuantBlock& block, int g) {
  if (HasZeroCodes(method)) return block.zero_codes[g];
  if (IsInt4(method)) return 8;
  switch (method) {
    case Method::kQ4_0:
      return 8;
    case Method::kQ5_0:
      return 16;
    case Method::kQ8_0:
      return 128;
    case Method::kQ3_K:
      return 4;
    case Method::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

float ValueOf(Method method, int zero, uint8_t code) {
  if (IsFp8(method)) return Fp8(code);
  if (method == Method::kMXFP4) return kTwiceFp4[code];
  if (method == Method::kIQ4_NL || method == Method::kIQ4_XS) return kIq4Nl[code];
  return static_cast<float>(code - zero);
}

}  // namespace

void Dequantize(Method method, bool bf16_scales, const QuantBlock& block, int count, float* out) {
  const int group = GroupOf(method);
  const bool has_min = HasMin(method);
  for (int g = 0; g * group < count; ++g) {
    const float scale = ScaleOf(method, bf16_scales, block, g);
    const float min = has_min ? MinOf(method, block, g) : 0.0f;
    const int zero = ZeroOf(method, block, g);
    for (int e = g * group; e < std::min((g + 1) * group, count); ++e) {
      const float product = scale * ValueOf(method, zero, block.codes[e]);
      out[e] = has_min ? product + min : product;  // adding +0 would turn -0 into +0
    }
  }
}

}  // namespace atelier
