#include "libs/kernels/quantize_error.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/packed_weights.h"

namespace atelier {
namespace {

constexpr int kRows = 5, kK = 320;

WeightSource SourceOf(const std::vector<float>& values) { return {DType::kF32, values.data(), kK}; }

double Relative(const std::vector<float>& values, Method method) {
  return QuantizeError(SourceOf(values), method, kK, 0, kRows).Relative();
}

// What the packed bytes stand for, by the published meaning of each method (docs/weight-layout.md).
double KeptInt8(const PackedMatrix& matrix, int row, int k) {
  const size_t at = static_cast<size_t>(row / 16) * PanelBytes(Method::kINT8, kK) +
                    static_cast<size_t>(k / 4 * 64 + row % 16 * 4 + k % 4);
  return static_cast<double>(matrix.row_scales[row]) * (matrix.data[at] - 128);
}

TEST(QuantizeError, IsWhatThePackedBytesHaveLost) {
  const std::vector<float> values = testing::RandomBf16Values(kRows * kK, 9);
  const testing::PackedWeights packed(Method::kINT8, kRows, kK, values);
  double error = 0, weight = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kK; ++k) {
      const double value = static_cast<double>(values[static_cast<size_t>(row * kK + k)]);
      error += std::pow(value - KeptInt8(packed.matrix(), row, k), 2);
      weight += value * value;
    }
  }
  const double want = std::sqrt(error / weight);
  EXPECT_NEAR(Relative(values, Method::kINT8), want, want * 1e-6);
}

// Normal weights: a uniform step s has an error of s / √12; the largest of 32 is about 2 σ, …
TEST(QuantizeError, IsOfTheSizeThatTheBitsAllow) {
  const std::vector<float> values = testing::RandomBf16Values(kRows * kK, 9);
  EXPECT_EQ(Relative(values, Method::kBF16), 0);
  EXPECT_GT(Relative(values, Method::kQ8_0), 0.003);
  EXPECT_LT(Relative(values, Method::kQ8_0), 0.007);
  for (const Method method : {Method::kINT4G32, Method::kINT4G64, Method::kMXFP4}) {
    EXPECT_GT(Relative(values, method), 0.07) << MethodName(method);
    EXPECT_LT(Relative(values, method), 0.15) << MethodName(method);
  }
}

TEST(QuantizeError, IsNothingForWeightsThatTheMethodHas) {
  std::vector<float> values(kRows * kK);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 5 % 16) - 8;  // INT4 codes with scale 1
  }
  EXPECT_EQ(Relative(values, Method::kINT4G32), 0);
  constexpr float kFp4[8] = {0, 0.5f, -1, 1.5f, 2, -3, 4, 6};
  for (size_t i = 0; i < values.size(); ++i) values[i] = kFp4[i % 8] * 0.25f;
  EXPECT_EQ(Relative(values, Method::kMXFP4), 0);
  EXPECT_EQ(Relative(std::vector<float>(kRows * kK), Method::kINT8), 0);
}

TEST(QuantizeError, IsNanWhereAWeightIs) {
  std::vector<float> values = testing::RandomBf16Values(kRows * kK, 9);
  values[7] = std::numeric_limits<float>::infinity();
  for (const Method method : {Method::kINT8, Method::kINT4G32, Method::kMXFP4, Method::kQ8_0}) {
    EXPECT_TRUE(std::isnan(Relative(values, method))) << MethodName(method);
  }
}

}  // namespace
}  // namespace atelier
