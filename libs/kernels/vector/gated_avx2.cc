#include <immintrin.h>

#include "libs/kernels/vector/gated-inl.h"

namespace atelier {
namespace {

struct EightFloats {
  static constexpr size_t kCount = 8;
  __m256 value;

  static EightFloats Load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static EightFloats All(float value) { return {_mm256_set1_ps(value)}; }
  void Store(float* to) const { _mm256_storeu_ps(to, value); }
  friend EightFloats operator+(EightFloats a, EightFloats b) {
    return {_mm256_add_ps(a.value, b.value)};
  }
  friend EightFloats operator-(EightFloats a, EightFloats b) {
    return {_mm256_sub_ps(a.value, b.value)};
  }
  friend EightFloats operator*(EightFloats a, EightFloats b) {
    return {_mm256_mul_ps(a.value, b.value)};
  }
  friend EightFloats operator/(EightFloats a, EightFloats b) {
    return {_mm256_div_ps(a.value, b.value)};
  }
  static EightFloats Least(EightFloats a, EightFloats b) {
    return {_mm256_min_ps(a.value, b.value)};
  }
  static EightFloats Largest(EightFloats a, EightFloats b) {
    return {_mm256_max_ps(a.value, b.value)};
  }
  static EightFloats PowerOfTwo(EightFloats biased) {
    const __m256i exponent =
        _mm256_add_epi32(_mm256_castps_si256(biased.value), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
  }
};

}  // namespace

void GatedAvx2(const GatedArgs& args) { RunGated<EightFloats>(args); }

}  // namespace atelier
