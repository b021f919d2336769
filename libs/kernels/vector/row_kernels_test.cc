#include "libs/kernels/vector/row_kernels.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libs/base/float16.h"
#include "libs/kernels/vector/row_kernel_table.h"

namespace atelier {
namespace {

struct Case {
  RowKernelEntry entry;
  int width;
};

class RowKernelsOnEveryIsa : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!GetParam().entry.supported) GTEST_SKIP() << "this CPU lacks " << GetParam().entry.isa;
  }
};

constexpr int kCount = 5;

// Operands of exact size, so that a sanitizer sees a read past the end; rows are `pad` elements
// further apart than wide.
struct Operands {
  Operands(int width, int pad) : stride(static_cast<size_t>(width + pad)) {
    std::mt19937 generator(static_cast<unsigned>(width));
    std::normal_distribution<float> normal;
    for (int j = 0; j < width; ++j) x.push_back(normal(generator));
    for (size_t j = 0; j < stride * (kCount - 1) + static_cast<size_t>(width); ++j) {
      const BFloat16 value = ToBFloat16(normal(generator));
      bf16.push_back(value.bits);
      f32.push_back(ToFloat(value));
    }
    for (int i = 0; i < kCount; ++i) weights.push_back(normal(generator));
  }
  size_t stride;
  std::vector<float> x, f32, weights;
  std::vector<uint16_t> bf16;
};

// |error| of a sum of n products in fp32, any order: at most (n + 1) eps sum |a b| (Higham, 2002,
// section 3.1, eps = 2^-24).
double Bound(int terms, double sum_of_magnitudes) {
  return (terms + 1) * 0x1p-24 * sum_of_magnitudes;
}

TEST_P(RowKernelsOnEveryIsa, DotsMatchDoubleWithinBound) {
  const int width = GetParam().width;
  const Operands operands(width, 3);
  std::vector<float> from_bf16(kCount), from_f32(kCount);
  const RowKernels& kernels = GetParam().entry.kernels;
  kernels.dot_bf16(operands.x.data(), operands.bf16.data(), operands.stride, kCount, width,
                   from_bf16.data());
  kernels.dot_f32(operands.x.data(), operands.f32.data(), operands.stride, kCount, width,
                  from_f32.data());
  for (size_t i = 0; i < kCount; ++i) {
    double expected = 0, magnitude = 0;
    for (size_t j = 0; j < static_cast<size_t>(width); ++j) {
      const double product =
          static_cast<double>(operands.x[j]) * operands.f32[i * operands.stride + j];
      expected += product;
      magnitude += std::abs(product);
    }
    EXPECT_NEAR(from_bf16[i], expected, Bound(width, magnitude)) << "row " << i;
    EXPECT_EQ(from_bf16[i], from_f32[i]) << "row " << i;
  }
}

TEST_P(RowKernelsOnEveryIsa, WeightedSumsMatchDoubleWithinBound) {
  const int width = GetParam().width;
  const Operands operands(width, 0);
  std::vector<float> sums = operands.x;
  GetParam().entry.kernels.add_weighted_bf16(operands.weights.data(), operands.bf16.data(),
                                             operands.stride, kCount, width, sums.data());
  for (size_t j = 0; j < static_cast<size_t>(width); ++j) {
    double expected = operands.x[j], magnitude = std::abs(expected);
    for (size_t i = 0; i < kCount; ++i) {
      const double product =
          static_cast<double>(operands.weights[i]) * operands.f32[i * operands.stride + j];
      expected += product;
      magnitude += std::abs(product);
    }
    EXPECT_NEAR(sums[j], expected, Bound(kCount + 1, magnitude)) << "column " << j;
  }
}

TEST_P(RowKernelsOnEveryIsa, ARowsBitsDoNotDependOnCount) {
  const int width = GetParam().width;
  const Operands operands(width, 1);
  const RowKernels& kernels = GetParam().entry.kernels;
  std::vector<float> together(kCount);
  kernels.dot_bf16(operands.x.data(), operands.bf16.data(), operands.stride, kCount, width,
                   together.data());
  for (size_t i = 0; i < kCount; ++i) {
    float alone = 0;
    kernels.dot_bf16(operands.x.data(), operands.bf16.data() + i * operands.stride, operands.stride,
                     1, width, &alone);
    EXPECT_EQ(alone, together[i]);
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const RowKernelEntry& entry : RowKernelCandidates(CpuFeatures::Detect())) {
    for (int width : {1, 7, 8, 9, 15, 16, 17, 64, 100, 576}) cases.push_back({entry, width});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(AllIsas, RowKernelsOnEveryIsa, ::testing::ValuesIn(AllCases()),
                         [](const auto& info) {
                           return std::string(info.param.entry.isa) + "_" +
                                  std::to_string(info.param.width);
                         });

TEST(RowKernelTable, CapLimitsTheChoice) {
  CpuFeatures everything;
  everything.avx2_fma = everything.avx512 = true;
  const auto candidates = RowKernelCandidates(everything);
  EXPECT_EQ(SelectRowKernels(everything, CpuIsa::kAvx2).dot_f32, candidates[1].kernels.dot_f32);
  EXPECT_EQ(SelectRowKernels(everything, CpuIsa::kAuto).dot_f32, candidates[0].kernels.dot_f32);
  EXPECT_EQ(SelectRowKernels(CpuFeatures{}, CpuIsa::kAuto).dot_f32, candidates[2].kernels.dot_f32);
}

}  // namespace
}  // namespace atelier
