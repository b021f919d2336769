#include <cstddef>
#include <cstdint>

#include "libs/kernels/vector/row_kernels.h"

namespace atelier {
namespace {

float Widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}
float Widen(float value) { return value; }

template <typename T>
void Dot(const float* x, const T* rows, size_t stride, int count, int width, float* out) {
  for (int i = 0; i < count; ++i) {
    const T* row = rows + static_cast<size_t>(i) * stride;
    float sum = 0;
    for (int j = 0; j < width; ++j) sum += x[j] * Widen(row[j]);
    out[i] = sum;
  }
}

void AddWeighted(const float* weights, const uint16_t* rows, size_t stride, int count, int width,
                 float* sums) {
  for (int i = 0; i < count; ++i) {
    const uint16_t* row = rows + static_cast<size_t>(i) * stride;
    for (int j = 0; j < width; ++j) sums[j] += weights[i] * Widen(row[j]);
  }
}

}  // namespace

RowKernels RowKernelsScalar() { return {Dot<uint16_t>, Dot<float>, AddWeighted}; }

}  // namespace atelier
