#include "libs/model/int8_codes.h"

#include <bit>
#include <cstring>
#include <limits>

namespace atelier {
namespace {

constexpr uint32_t kMagnitudeMask = 0x7fffffffu;
constexpr uint32_t kInfinityBits = 0x7f800000u;
// Adding 1.5 * 2^23 leaves a small float's nearest integer (ties to even) in the low mantissa bits.
constexpr float kRoundingBias = 12582912.0f;

float AsFloat(float value) { return value; }
float AsFloat(BFloat16 value) { return ToFloat(value); }

// As integers, magnitudes order like the floats do, with NaNs above infinity: one pass finds both
// the maximum and whether everything is finite.
template <typename T>
uint32_t LargestMagnitudeBits(const T* row, int k) {
  uint32_t largest = 0;
  for (int i = 0; i < k; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(AsFloat(row[i])) & kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

template <typename T>
float Quantize(const T* row, int k, int8_t* codes) {
  const uint32_t largest = LargestMagnitudeBits(row, k);
  if (largest >= kInfinityBits) {
    std::memset(codes, 0, static_cast<size_t>(k));
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float ratio = std::bit_cast<float>(largest) / 127.0f;
  const float smallest = std::numeric_limits<float>::min();  // keeps 1 / scale finite
  const float scale = ratio > smallest ? ratio : smallest;
  const float inverse = 1.0f / scale;
  for (int i = 0; i < k; ++i) {
    const float biased = AsFloat(row[i]) * inverse + kRoundingBias;
    const uint32_t code = std::bit_cast<uint32_t>(biased) - std::bit_cast<uint32_t>(kRoundingBias);
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code));
  }
  return scale;
}

}  // namespace

float QuantizeInt8Row(const float* row, int k, int8_t* codes) { return Quantize(row, k, codes); }
float QuantizeInt8Row(const BFloat16* row, int k, int8_t* codes) { return Quantize(row, k, codes); }

}  // namespace atelier
