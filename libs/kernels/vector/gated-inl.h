#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/vector/gated_kernel.h"

// The gated activation, written once over a type of several floats: the same fp32 operations in the
// same order on every instruction set (never contracted, CMakeLists.txt), so the same bits. In an
// anonymous namespace, as gemm/micro_kernel.h says.
//
// Floats has kCount, Load, Store, All (of one value), + - * /, Least(a, b) = a < b ? a : b,
// Largest(a, b) = a > b ? a : b (b where one is a NaN) and PowerOfTwo: see OneFloat.

namespace atelier {
namespace {

struct OneFloat {
  static constexpr size_t kCount = 1;
  float value;

  static OneFloat Load(const float* from) { return {*from}; }
  static OneFloat All(float value) { return {value}; }
  void Store(float* to) const { *to = value; }
  friend OneFloat operator+(OneFloat a, OneFloat b) { return {a.value + b.value}; }
  friend OneFloat operator-(OneFloat a, OneFloat b) { return {a.value - b.value}; }
  friend OneFloat operator*(OneFloat a, OneFloat b) { return {a.value * b.value}; }
  friend OneFloat operator/(OneFloat a, OneFloat b) { return {a.value / b.value}; }
  static OneFloat Least(OneFloat a, OneFloat b) { return a.value < b.value ? a : b; }
  static OneFloat Largest(OneFloat a, OneFloat b) { return a.value > b.value ? a : b; }
  // 2^n from kRoundingBias + n: the bits of the sum end in those of n, and what is above the
  // exponent is shifted out.
  static OneFloat PowerOfTwo(OneFloat biased) {
    const uint32_t exponent = __builtin_bit_cast(uint32_t, biased.value) + 127u;
    return {__builtin_bit_cast(float, exponent << 23)};
  }
};

constexpr float kRoundingBias = 12582912.0f;  // 1.5 * 2^23: leaves n in the low mantissa bits

// e^x to about 2 ulp for x in [-87, 88], clamped outside, NaN for NaN. Our own so that every host
// gives the same bits (libm picks a variant by CPU): x = n ln2 + r with |r| <= ln2 / 2, a degree-6
// polynomial for e^r, the exponent field for 2^n.
template <typename Floats>
inline Floats Exp(Floats x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits of ln2: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kCoefficients[] = {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
  x = Floats::Least(Floats::All(88.0f), x);
  x = Floats::Largest(Floats::All(-87.0f), x);
  const Floats biased = x * Floats::All(kLog2E) + Floats::All(kRoundingBias);
  const Floats n = biased - Floats::All(kRoundingBias);
  const Floats r = x - n * Floats::All(kLn2High) - n * Floats::All(kLn2Low);
  Floats p = Floats::All(1.0f / 720.0f);
  for (float coefficient : kCoefficients) p = p * r + Floats::All(coefficient);
  return p * Floats::PowerOfTwo(biased);
}

template <typename Floats, bool kSwiGlu>
inline Floats Gated(const GatedArgs& args, Floats gate, Floats up) {
  const Floats one = Floats::All(1.0f), zero = Floats::All(0.0f);
  if constexpr (kSwiGlu) return gate / (one + Exp(zero - gate)) * up;
  gate = Floats::Least(Floats::All(args.limit), gate);
  gate = Floats::Largest(Floats::All(args.gate_min), gate);
  up = Floats::Least(Floats::All(args.limit), up);
  up = Floats::Largest(Floats::All(-args.limit), up);
  const Floats slope = Floats::All(-args.alpha) * gate;
  return gate / (one + Exp(slope)) * (up + Floats::All(args.up_offset));
}

// Elements [begin, end), a multiple of Floats::kCount.
template <typename Floats, bool kSwiGlu>
inline void GatedLoop(const GatedArgs& args, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += Floats::kCount) {
    Floats gate = Floats::Load(args.gate + i), up = Floats::Load(args.up + i);
    if (args.gate_bias != nullptr) {
      gate = gate + Floats::Load(args.gate_bias + i);
      up = up + Floats::Load(args.up_bias + i);
    }
    Gated<Floats, kSwiGlu>(args, gate, up).Store(args.gate + i);
  }
}

template <typename Floats>
inline void RunGated(const GatedArgs& args) {
  const size_t whole = args.count / Floats::kCount * Floats::kCount;
  if (args.swiglu) {
    GatedLoop<Floats, true>(args, 0, whole);
    return GatedLoop<OneFloat, true>(args, whole, args.count);
  }
  GatedLoop<Floats, false>(args, 0, whole);
  GatedLoop<OneFloat, false>(args, whole, args.count);
}

}  // namespace
}  // namespace atelier
