#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libs/base/checked_math.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "libs/testing/supported_kernels.h"

namespace atelier {
namespace {

using testing::GuardedBuffer;
using testing::KernelName;
using testing::PackedWeights;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::RandomWeights;
using testing::RunGemm;
using testing::SameBits;
using testing::Slice;
using testing::SupportedKernels;
using testing::SupportedPlainKernels;

// What an element must be: for INT8 the one exact value, for BF16 the sum in double and how far
// fp32 sums in any order may be from it (docs/numerics.md).
struct Expected {
  double value = 0;
  double bound = 0;
};

float Bf16At(const uint8_t* at) {
  BFloat16 value;
  std::memcpy(&value, at, sizeof(value));
  return ToFloat(value);
}

const uint8_t* WeightGroup(const PackedMatrix& weights, int column, int group) {
  return weights.data + static_cast<size_t>(column / 16) * PanelBytes(weights.method, weights.k) +
         static_cast<size_t>(group) * 64 + static_cast<size_t>(column % 16) * 4;
}

Expected ExpectedBf16(const PackedMatrix& weights, const uint8_t* row, int column) {
  double sum = 0, magnitude = 0;
  for (int k = 0; k < weights.k; ++k) {
    const double activation = Bf16At(row + k * 2);
    const double product = activation * Bf16At(WeightGroup(weights, column, k / 2) + k % 2 * 2);
    sum += product;
    magnitude += std::fabs(product);
  }
  const double roundings = (weights.k + 1) * 0x1p-24;
  return {sum, roundings / (1 - roundings) * magnitude + weights.k * 0x1p-125};
}

Expected ExpectedInt8(const PackedMatrix& weights, const uint8_t* row, float scale, int column) {
  int64_t sum = 0;
  for (int k = 0; k < weights.k; ++k) {
    const int weight = WeightGroup(weights, column, k / 4)[k % 4] - 128;
    sum += weight * static_cast<int8_t>(row[k]);
  }
  const volatile float scaled = static_cast<float>(sum) * scale;
  const volatile float value = scaled * weights.row_scales[column];
  return {value, 0};
}

std::vector<Expected> ExpectedProducts(const PackedMatrix& weights, const ActivationRows& rows) {
  std::vector<Expected> expected;
  for (int r = 0; r < rows.rows; ++r) {
    const uint8_t* row = rows.data + static_cast<size_t>(r) * rows.stride;
    for (int c = 0; c < weights.n; ++c) {
      expected.push_back(weights.method == Method::kBF16
                             ? ExpectedBf16(weights, row, c)
                             : ExpectedInt8(weights, row, rows.scales[r], c));
    }
  }
  return expected;
}

// Compares out [rows, width] with the first rows of expected [*, n].
void ExpectMatches(const std::vector<Expected>& expected, const std::vector<float>& out, int rows,
                   int n) {
  const int width = (n + 15) / 16 * 16;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < n; ++c) {
      const Expected& want = expected[static_cast<size_t>(r * n + c)];
      const double got = out[static_cast<size_t>(r * width + c)];
      ASSERT_LE(std::fabs(got - want.value), want.bound)
          << "row " << r << " column " << c << ": " << got << " instead of " << want.value;
    }
  }
}

class PlainGemmOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {};

TEST_P(PlainGemmOnEveryIsa, MatchesReferenceOnOddShapes) {
  constexpr int kMostRows = 64;
  for (int n : {0, 1, 15, 16, 17, 33, 64}) {
    for (int k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 576, 1000}) {
      SCOPED_TRACE(::testing::Message() << "n=" << n << " k=" << k << " (also the seed)");
      const uint32_t seed = static_cast<uint32_t>(n * 10000 + k);
      const PackedWeights weights(GetParam().method, n, k,
                                  RandomBf16Values(static_cast<size_t>(n * k), seed));
      const std::vector<float> values =
          RandomBf16Values(static_cast<size_t>(kMostRows * k), seed + 1);
      const PreparedRows all(GetParam().method, values, kMostRows, k);
      const std::vector<Expected> expected = ExpectedProducts(weights.matrix(), all.rows());
      for (int rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 64}) {
        const PreparedRows some(GetParam().method, values, rows, k);
        const std::vector<float> out =
            RunGemm(GetParam(), weights.matrix(), some.rows(), 0, weights.matrix().num_panels());
        ASSERT_NO_FATAL_FAILURE(ExpectMatches(expected, out, rows, n)) << "rows=" << rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PlainGemmOnEveryIsa, ::testing::ValuesIn(SupportedPlainKernels()),
                         KernelName);

class GemmOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {
 protected:
  // `k`, or the next that the method has.
  static int NextK(int k) { return RoundUp(k, KMultiple(GetParam().method)); }
};

TEST_P(GemmOnEveryIsa, RowBitsDependNeitherOnBatchNorOnPanelRange) {
  constexpr int kN = 75, kRows = 300;  // more rows than fit one cache chunk
  const int k = NextK(577);
  const PackedWeights weights = RandomWeights(GetParam().method, kN, k, 1);
  const PreparedRows prepared(GetParam().method,
                              RandomBf16Values(static_cast<size_t>(kRows * k), 2), kRows, k);
  const int panels = weights.matrix().num_panels();
  const size_t width = static_cast<size_t>(panels) * 16;
  const std::vector<float> together =
      RunGemm(GetParam(), weights.matrix(), prepared.rows(), 0, panels);
  for (int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 64, 129}) {
    for (int begin = 0; begin + count <= kRows; begin += 61) {
      const ActivationRows slice = Slice(prepared.rows(), begin, count);
      const std::vector<float> out = RunGemm(GetParam(), weights.matrix(), slice, 0, panels);
      ASSERT_TRUE(
          SameBits(out.data(), together.data() + static_cast<size_t>(begin) * width, out.size()))
          << "rows " << begin << " + " << count;
    }
  }
  for (int panel_begin = 0; panel_begin < panels; ++panel_begin) {
    for (int panel_end = panel_begin; panel_end <= panels; ++panel_end) {
      const ActivationRows slice = Slice(prepared.rows(), 100, 9);
      const std::vector<float> out =
          RunGemm(GetParam(), weights.matrix(), slice, panel_begin, panel_end);
      const size_t part = static_cast<size_t>(panel_end - panel_begin) * 16;
      for (size_t r = 0; r < 9; ++r) {
        const float* whole =
            together.data() + (100 + r) * width + static_cast<size_t>(panel_begin) * 16;
        ASSERT_TRUE(part == 0 || SameBits(out.data() + r * part, whole, part))
            << "panels " << panel_begin << " to " << panel_end << " row " << r;
      }
    }
  }
}

TEST_P(GemmOnEveryIsa, RowThatIsNotFiniteIsNanThroughoutAndTouchesNoOther) {
  constexpr int kN = 33, kRows = 21;
  const size_t k = static_cast<size_t>(NextK(70));
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  const PackedWeights weights = RandomWeights(GetParam().method, kN, NextK(70), 3);
  std::vector<float> values = RandomBf16Values(kRows * k, 4);
  const PreparedRows clean(GetParam().method, values, kRows, NextK(70));
  for (size_t r = 1; r < kRows; r += 4) values[r * k + r] = bad[r % 3];
  const PreparedRows dirty(GetParam().method, values, kRows, NextK(70));
  const std::vector<float> want = RunGemm(GetParam(), weights.matrix(), clean.rows(), 0, 3);
  const std::vector<float> got = RunGemm(GetParam(), weights.matrix(), dirty.rows(), 0, 3);
  for (size_t r = 0; r < kRows; ++r) {
    if (r % 4 != 1) {
      EXPECT_TRUE(SameBits(&want[r * 48], &got[r * 48], 48)) << "row " << r;
      continue;
    }
    for (size_t c = 0; c < kN; ++c) EXPECT_TRUE(std::isnan(got[r * 48 + c])) << r << "," << c;
  }
}

TEST_P(GemmOnEveryIsa, WritesNothingBesideItsColumns) {
  constexpr int kRows = 13;
  const int k = NextK(40);
  constexpr size_t kStride = 37;
  constexpr float kCanary = -12345.0f;
  const PackedWeights weights = RandomWeights(GetParam().method, 32, k, 5);
  const PreparedRows prepared(GetParam().method,
                              RandomBf16Values(static_cast<size_t>(kRows * k), 6), kRows, k);
  std::vector<float> out(kRows * kStride, kCanary);
  Gemm(KernelTable::ForEntry(GetParam()), weights.matrix(), prepared.rows(), 0, 2, out.data(),
       kStride);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kStride; ++c) {
      EXPECT_EQ(out[r * kStride + c] == kCanary, c >= 32) << r << "," << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmOnEveryIsa, ::testing::ValuesIn(SupportedKernels()),
                         KernelName);

TEST(Bf16Gemm, KernelsWithOneSumInAscendingKGiveTheSameBits) {
  constexpr int kN = 40, kK = 700, kRows = 21;
  const PackedWeights weights = RandomWeights(Method::kBF16, kN, kK, 9);
  const PreparedRows rows(Method::kBF16, RandomBf16Values(kRows * kK, 10), kRows, kK);
  const std::vector<KernelEntry> kernels = SupportedKernels(Method::kBF16);
  ASSERT_STREQ(kernels.back().isa, "scalar");
  const std::vector<float> want = RunGemm(kernels.back(), weights.matrix(), rows.rows(), 0, 3);
  for (const KernelEntry& kernel : kernels) {
    const std::string isa = kernel.isa;
    if (isa != "avx2" && isa != "avx512") continue;
    const std::vector<float> got = RunGemm(kernel, weights.matrix(), rows.rows(), 0, 3);
    EXPECT_TRUE(SameBits(got.data(), want.data(), got.size())) << isa;
  }
}

class Int8GemmOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {};

// All codes at +-127: where 16-bit sums would saturate, and at the longest K where a 32-bit sum is
// nearly full.
TEST_P(Int8GemmOnEveryIsa, IsExactAtTheExtremes) {
  for (int k : {64, 1000, MaxPackedK(Method::kINT8)}) {
    for (float sign : {1.0f, -1.0f}) {
      const PackedWeights weights(Method::kINT8, 2, k,
                                  std::vector<float>(2 * static_cast<size_t>(k), 127.0f));
      const PreparedRows rows(Method::kINT8,
                              std::vector<float>(static_cast<size_t>(k), 127.0f * sign), 1, k);
      const std::vector<float> out = RunGemm(GetParam(), weights.matrix(), rows.rows(), 0, 1);
      EXPECT_EQ(out[0], static_cast<float>(k * 16129LL) * sign) << "k=" << k;
      EXPECT_EQ(out[1], out[0]);
    }
  }
}

TEST_P(Int8GemmOnEveryIsa, IsBitEqualToScalarForAnyScales) {
  constexpr int kN = 48, kK = 1100, kRows = 70;  // more than one chunk of K and of rows
  std::vector<float> weight_values = RandomBf16Values(kN * kK, 7);
  for (size_t i = 0; i < weight_values.size(); ++i)
    weight_values[i] *= std::exp2f(float(i / kK) - 20);
  std::vector<float> row_values = RandomBf16Values(kRows * kK, 8);
  for (size_t i = 0; i < row_values.size(); ++i)
    row_values[i] *= std::exp2f(float(i / kK % 19) * 9 - 80);
  const PackedWeights weights(Method::kINT8, kN, kK, weight_values);
  const PreparedRows rows(Method::kINT8, row_values, kRows, kK);
  const std::vector<float> got = RunGemm(GetParam(), weights.matrix(), rows.rows(), 0, 3);
  const std::vector<float> want =
      RunGemm(SupportedKernels(Method::kINT8).back(), weights.matrix(), rows.rows(), 0, 3);
  EXPECT_STREQ(SupportedKernels(Method::kINT8).back().isa, "scalar");
  EXPECT_TRUE(SameBits(got.data(), want.data(), got.size()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Int8GemmOnEveryIsa,
                         ::testing::ValuesIn(SupportedKernels(Method::kINT8)), KernelName);

}  // namespace
}  // namespace atelier
