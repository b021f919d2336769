#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/vector/row_kernels.h"

namespace atelier {
namespace {

constexpr int kLanes = 8;

inline __m256 Load(const uint16_t* from) {
  const __m256i wide =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline __m256 Load(const float* from) { return _mm256_loadu_ps(from); }
inline float Widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}
inline float Widen(float value) { return value; }
inline float Add(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// One lane of sums per j modulo 8, fused, j ascending; the lanes are then added as a tree, the last
// width % 8 products after it.
template <typename T>
void Dot(const float* x, const T* rows, size_t stride, int count, int width, float* out) {
  for (int i = 0; i < count; ++i) {
    const T* row = rows + static_cast<size_t>(i) * stride;
    __m256 sum = _mm256_setzero_ps();
    int j = 0;
    for (; j + kLanes <= width; j += kLanes) sum = _mm256_fmadd_ps(Load(x + j), Load(row + j), sum);
    float total = Add(sum);
    for (; j < width; ++j) total += x[j] * Widen(row[j]);
    out[i] = total;
  }
}

void AddWeighted(const float* weights, const uint16_t* rows, size_t stride, int count, int width,
                 float* sums) {
  int j = 0;
  for (; j + kLanes <= width; j += kLanes) {
    __m256 sum = _mm256_loadu_ps(sums + j);
    for (int i = 0; i < count; ++i) {
      sum = _mm256_fmadd_ps(_mm256_set1_ps(weights[i]),
                            Load(rows + static_cast<size_t>(i) * stride + j), sum);
    }
    _mm256_storeu_ps(sums + j, sum);
  }
  for (; j < width; ++j) {
    for (int i = 0; i < count; ++i)
      sums[j] += weights[i] * Widen(rows[static_cast<size_t>(i) * stride + static_cast<size_t>(j)]);
  }
}

}  // namespace

RowKernels RowKernelsAvx2() { return {Dot<uint16_t>, Dot<float>, AddWeighted}; }

}  // namespace atelier
