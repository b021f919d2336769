#include <immintrin.h>

#include "libs/kernels/vector/gated-inl.h"

namespace atelier {
namespace {

struct SixteenFloats {
  static constexpr size_t kCount = 16;
  __m512 value;

  static SixteenFloats Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static SixteenFloats All(float value) { return {_mm512_set1_ps(value)}; }
  void Store(float* to) const { _mm512_storeu_ps(to, value); }
  friend SixteenFloats operator+(SixteenFloats a, SixteenFloats b) {
    return {_mm512_add_ps(a.value, b.value)};
  }
  friend SixteenFloats operator-(SixteenFloats a, SixteenFloats b) {
    return {_mm512_sub_ps(a.value, b.value)};
  }
  friend SixteenFloats operator*(SixteenFloats a, SixteenFloats b) {
    return {_mm512_mul_ps(a.value, b.value)};
  }
  friend SixteenFloats operator/(SixteenFloats a, SixteenFloats b) {
    return {_mm512_div_ps(a.value, b.value)};
  }
  static SixteenFloats Least(SixteenFloats a, SixteenFloats b) {
    return {_mm512_min_ps(a.value, b.value)};
  }
  static SixteenFloats Largest(SixteenFloats a, SixteenFloats b) {
    return {_mm512_max_ps(a.value, b.value)};
  }
  static SixteenFloats PowerOfTwo(SixteenFloats biased) {
    const __m512i exponent =
        _mm512_add_epi32(_mm512_castps_si512(biased.value), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }
};

}  // namespace

void GatedAvx512(const GatedArgs& args) { RunGated<SixteenFloats>(args); }

}  // namespace atelier
