#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/vector/row_kernels.h"

namespace atelier {
namespace {

constexpr int kLanes = 16;

inline __mmask16 Tail(int left) {
  return static_cast<__mmask16>(left >= kLanes ? 0xffffu : (1u << left) - 1u);
}
inline __m512 Load(const uint16_t* from, __mmask16 mask) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline __m512 Load(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }

// One lane of sums per j modulo 16, fused, j ascending; the lanes are then added as a tree.
template <typename T>
void Dot(const float* x, const T* rows, size_t stride, int count, int width, float* out) {
  for (int i = 0; i < count; ++i) {
    const T* row = rows + static_cast<size_t>(i) * stride;
    __m512 sum = _mm512_setzero_ps();
    for (int j = 0; j < width; j += kLanes) {
      const __mmask16 mask = Tail(width - j);
      sum = _mm512_fmadd_ps(Load(x + j, mask), Load(row + j, mask), sum);
    }
    out[i] = _mm512_reduce_add_ps(sum);
  }
}

void AddWeighted(const float* weights, const uint16_t* rows, size_t stride, int count, int width,
                 float* sums) {
  for (int j = 0; j < width; j += kLanes) {
    const __mmask16 mask = Tail(width - j);
    __m512 sum = Load(sums + j, mask);
    for (int i = 0; i < count; ++i) {
      const __m512 row = Load(rows + static_cast<size_t>(i) * stride + j, mask);
      sum = _mm512_fmadd_ps(_mm512_set1_ps(weights[i]), row, sum);
    }
    _mm512_mask_storeu_ps(sums + j, mask, sum);
  }
}

}  // namespace

RowKernels RowKernelsAvx512() { return {Dot<uint16_t>, Dot<float>, AddWeighted}; }

}  // namespace atelier
