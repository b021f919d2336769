#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "libs/base/float16.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/pack.h"
#include "libs/testing/guarded_buffer.h"

namespace atelier::testing {

// `count` normal values, rounded to bf16 so that BF16 weights and activations hold them exactly.
inline std::vector<float> RandomBf16Values(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = ToFloat(ToBFloat16(normal(generator)));
  return values;
}

// A packed matrix [n, k] that ends at an inaccessible page.
class PackedWeights {
 public:
  PackedWeights(Method method, int n, int k, const std::vector<float>& values)
      : PackedWeights(method, n, k) {
    const WeightSource source{DType::kF32, values.data(), static_cast<size_t>(k)};
    PackMatrix(source, method, n, k, 0, matrix_.num_panels(), block_.data());
  }
  PackedWeights(Method method, int n, int k, const QuantSource& source)
      : PackedWeights(method, n, k) {
    PackQuantMatrix(source, method, n, k, 0, matrix_.num_panels(), block_.data());
  }
  const PackedMatrix& matrix() const { return matrix_; }

 private:
  PackedWeights(Method method, int n, int k)
      : block_(PackedMatrixBytes(method, n, k)),
        matrix_(PackedMatrixAt(method, n, k, block_.data())) {}

  GuardedBuffer<uint8_t> block_;
  PackedMatrix matrix_;
};

// Prepared activation rows [rows, k] that end at an inaccessible page.
class PreparedRows {
 public:
  PreparedRows(Method method, const std::vector<float>& values, int rows, int k)
      : stride_(ActivationRowBytes(method, k)),
        data_(static_cast<size_t>(rows) * stride_),
        scales_(method == Method::kINT8 ? static_cast<size_t>(rows) : 0),
        num_rows_(rows) {
    PrepareRows(method, values.data(), static_cast<size_t>(k), rows, k, data_.data(),
                scales_.data());
  }
  ActivationRows rows() const { return {data_.data(), stride_, scales_.data(), num_rows_}; }

 private:
  size_t stride_;
  GuardedBuffer<uint8_t> data_;
  GuardedBuffer<float> scales_;
  int num_rows_;
};

}  // namespace atelier::testing
