#include "libs/kernels/quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "libs/kernels/gemm/block_format.h"

namespace atelier {
namespace {

constexpr uint16_t kHalfNan = 0x7e00;
constexpr uint8_t kE8M0Nan = 255;

// Adding and subtracting 1.5 * 2^23 rounds a small float to its nearest integer, ties to even.
float RoundToInteger(float value) { return value + 12582912.0f - 12582912.0f; }

float Clamp(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// The element of the largest magnitude, with its sign; NaN where there is a NaN or an infinity.
float Peak(const float* values, int count) {
  float peak = 0;
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return std::nanf("");
    if (std::fabs(values[i]) > std::fabs(peak)) peak = values[i];
  }
  return peak;
}

// Steps that the search starts from: the largest magnitude of a group divided by these. Around 8
// the peak takes the code that lies furthest out; larger divisors clip it for finer steps; negative
// ones put it on the side of code 7. Chosen by an exhaustive search over real and normal weights,
// of which these reach the optimum to within 0.3 %.
constexpr int kNumTrials = 16;
constexpr float kTrials[kNumTrials] = {7.5f,   7.86f,  8.21f,  8.57f,  8.93f,  9.29f,
                                       9.64f,  10.0f,  -7.0f,  -7.36f, -7.71f, -8.07f,
                                       -8.43f, -8.79f, -9.14f, -9.5f};

// Sums over a group of codes times weights, and of squared codes: with the best scale for these
// codes, wq / qq, the squared error is Σ w² − wq² / qq.
struct CodeSums {
  float wq = 0;
  float qq = 0;
  float Gain() const { return qq > 0 ? wq * wq / qq : 0; }
};

CodeSums SumsFor(const float* values, int count, float inverse) {
  CodeSums sums;
  for (int i = 0; i < count; ++i) {
    const float code = Clamp(RoundToInteger(values[i] * inverse), -8.0f, 7.0f);
    sums.wq += code * values[i];
    sums.qq += code * code;
  }
  return sums;
}

// Four trials side by side: the compiler does not find these vectors itself.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kLanes = 4;

// All trials at once over values of which the largest magnitude is 1.
float BestTrialScale(const float* values, int count) {
  constexpr int kVectors = kNumTrials / kLanes;
  const Lanes low = Lanes{} - 8.0f, high = Lanes{} + 7.0f;
  Lanes inverse[kVectors], wq[kVectors] = {}, qq[kVectors] = {};
  for (int t = 0; t < kNumTrials; ++t) inverse[t / kLanes][t % kLanes] = -kTrials[t];
  for (int i = 0; i < count; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      Lanes code = values[i] * inverse[v] + 12582912.0f - 12582912.0f;
      code = code < low ? low : code;
      code = code > high ? high : code;
      wq[v] += code * values[i];
      qq[v] += code * code;
    }
  }
  CodeSums best;
  for (int t = 0; t < kNumTrials; ++t) {
    const CodeSums sums{wq[t / kLanes][t % kLanes], qq[t / kLanes][t % kLanes]};
    if (sums.Gain() > best.Gain()) best = sums;
  }
  return best.qq > 0 ? best.wq / best.qq : 0;
}

uint16_t QuantizeInt4(const float* values, int count, uint8_t* codes) {
  std::fill_n(codes, count, uint8_t{8});
  const float peak = Peak(values, count);
  // A step, or its inverse, beyond the range of floats: such weights are zero.
  if (std::fabs(peak) < 0x1p-100f) return 0;
  // Searched at unit size, so that no square leaves the range of floats.
  float scaled[128];
  const float unit = 1.0f / peak;
  for (int i = 0; i < count; ++i) scaled[i] = values[i] * unit;
  float scale = BestTrialScale(scaled, count);
  const CodeSums refined = SumsFor(scaled, count, 1.0f / scale);
  if (refined.qq > 0) scale = refined.wq / refined.qq;
  const uint16_t half = ToFloat16(scale * peak);
  const float kept = Float16ToFloat(half);
  if (!std::isfinite(kept)) return kHalfNan;
  if (kept == 0) return 0;
  for (int i = 0; i < count; ++i) {
    // Divided, not multiplied by an inverse, which a subnormal step does not have.
    codes[i] =
        static_cast<uint8_t>(Clamp(RoundToInteger(Clamp(values[i] / kept, -9, 9)), -8, 7) + 8);
  }
  return half;
}

uint16_t QuantizeQ8(const float* values, int count, uint8_t* codes) {
  std::fill_n(codes, count, uint8_t{128});
  const uint16_t half = ToFloat16(std::fabs(Peak(values, count)) / 127.0f);
  const float kept = Float16ToFloat(half);
  if (!std::isfinite(kept)) return kHalfNan;
  if (kept == 0) return 0;
  for (int i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(Clamp(RoundToInteger(values[i] / kept), -127, 127) + 128);
  }
  return half;
}

// Nearest E2M1 of a magnitude: steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6, all ties to even.
uint8_t Fp4Code(float value) {
  const float magnitude = std::fabs(value);
  float code;
  if (magnitude < 2.0f) {
    code = RoundToInteger(magnitude * 2.0f);
  } else if (magnitude < 4.0f) {
    code = RoundToInteger(magnitude) + 2.0f;
  } else {
    code = RoundToInteger(Clamp(magnitude, 4.0f, 6.0f) * 0.5f) + 4.0f;
  }
  return static_cast<uint8_t>(static_cast<int>(code) | (std::signbit(value) ? 8 : 0));
}

uint8_t QuantizeFp4(const float* values, int count, uint8_t* codes) {
  constexpr int kLargestExponent = 2;  // of E2M1
  std::fill_n(codes, count, uint8_t{0});
  const float peak = std::fabs(Peak(values, count));
  if (std::isnan(peak)) return kE8M0Nan;
  if (peak == 0) return 0;
  const int exponent = std::max(std::ilogb(peak) - kLargestExponent, -127);
  const float inverse = std::ldexp(1.0f, -exponent);
  for (int i = 0; i < count; ++i) codes[i] = Fp4Code(values[i] * inverse);
  return static_cast<uint8_t>(exponent + 127);
}

}  // namespace

bool CanQuantizeTo(Method method) {
  switch (method) {
    case Method::kINT4G32:
    case Method::kINT4G64:
    case Method::kINT4G128:
    case Method::kMXFP4:
    case Method::kQ8_0:
      return true;
    default:
      return false;
  }
}

bool TakesFloats(Method method) {
  return method == Method::kBF16 || method == Method::kINT8 || CanQuantizeTo(method);
}

QuantizingSource::QuantizingSource(const WeightSource& floats, Method method)
    : floats_(floats), method_(method), group_(KMultiple(method)) {
  ATELIER_CHECK(CanQuantizeTo(method));
}

void QuantizingSource::Read(int row, int column, int count, QuantBlock& out) const {
  float values[256];
  ReadWeights(floats_, row, column, count, values);
  for (int first = 0; first < count; first += group_) {
    const int j = first / group_;
    const float* group = values + first;
    uint8_t* codes = out.codes + first;
    if (method_ == Method::kMXFP4) {
      out.exponents[j] = QuantizeFp4(group, group_, codes);
    } else if (method_ == Method::kQ8_0) {
      out.half_scales[j] = QuantizeQ8(group, group_, codes);
    } else {
      out.half_scales[j] = QuantizeInt4(group, group_, codes);
    }
  }
}

}  // namespace atelier
