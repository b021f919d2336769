#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/gemm_runner.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"
#include "libs/testing/supported_kernels.h"

namespace atelier {
namespace {

using testing::KernelName;
using testing::PackedWeights;
using testing::PreparedRows;
using testing::RandomBf16Values;
using testing::RandomFp8Source;
using testing::RunGemm;
using testing::SameBits;
using testing::SupportedFp8Kernels;
using testing::SupportedKernels;

constexpr double kTiny = 0x1p-126;

double ScaleOf(Method method, const QuantBlock& block, int k) {
  switch (method) {
    case Method::kFP8_BLOCK:
      return block.float_scales[k / 128];
    case Method::kFP8_ROW:
      return block.float_scales[0];
    default:
      return std::ldexp(1.0, block.exponents[k / 32] - 127);
  }
}

// What an element must be and how far from it fp32 may be (docs/numerics.md).
struct Expected {
  double value = 0;
  double bound = 0;
};

Expected ExpectedProduct(const QuantSource& source, Method method, int n, int k,
                         const float* activations) {
  QuantBlock block{}, first{};
  source.Read(n, 0, std::min(k, 256), first);
  double magnitude = 0, flushed = 0;
  Expected expected;
  for (int i = 0; i < k; ++i) {
    if (i % 256 == 0) source.Read(n, i, std::min(k - i, 256), block);
    const double scale =
        method == Method::kFP8_ROW ? ScaleOf(method, first, 0) : ScaleOf(method, block, i % 256);
    const double product = RandomFp8Source::Value(block.codes[i % 256]) * activations[i];
    expected.value += scale * product;
    magnitude += std::fabs(scale * product);
    flushed += 2 * kTiny * (std::fabs(scale) + 1);
  }
  const int group = method == Method::kMXFP8 ? 32 : 128;
  const double roundings = (std::min(k, group) + k / group + 3) * 0x1p-24;
  expected.bound = roundings / (1 - roundings) * magnitude + flushed;
  return expected;
}

// Those that add in the order of the scalar kernel.
bool AddsInFp32(const KernelEntry& entry) {
  return std::strcmp(entry.isa, "avx512bf16") != 0 && entry.level != CpuIsa::kAmx;
}

std::vector<int> OddK(Method method) {
  std::vector<int> all;
  for (const int k : {1, 2, 3, 31, 32, 33, 95, 127, 128, 129, 160, 255, 256, 300, 1000}) {
    const int rounded = (k + KMultiple(method) - 1) / KMultiple(method) * KMultiple(method);
    if (all.empty() || all.back() != rounded) all.push_back(rounded);
  }
  return all;
}

class Fp8GemmOnEveryIsa : public ::testing::TestWithParam<KernelEntry> {
 protected:
  Method method() const { return GetParam().method; }
  std::vector<float> Run(const PackedMatrix& weights, const PreparedRows& rows) const {
    return RunGemm(GetParam(), weights, rows.rows(), 0, weights.num_panels());
  }
};

TEST_P(Fp8GemmOnEveryIsa, MatchesReferenceOnOddShapes) {
  constexpr int kMostRows = 40;
  for (const int n : {0, 1, 16, 17, 33, 65}) {
    for (const int k : OddK(method())) {
      SCOPED_TRACE(::testing::Message() << "n=" << n << " k=" << k);
      const RandomFp8Source source(static_cast<uint32_t>(n * 10000 + k));
      const PackedWeights weights(method(), n, k, source);
      const size_t width = static_cast<size_t>(weights.matrix().num_panels()) * 16;
      const std::vector<float> values =
          RandomBf16Values(static_cast<size_t>(kMostRows * k), static_cast<uint32_t>(k));
      const std::vector<float> all =
          Run(weights.matrix(), PreparedRows(method(), values, kMostRows, k));
      for (int r = 0; r < kMostRows; ++r) {
        for (int c = 0; c < n; ++c) {
          const Expected want = ExpectedProduct(source, method(), c, k, values.data() + r * k);
          ASSERT_NEAR(all[static_cast<size_t>(r) * width + static_cast<size_t>(c)], want.value,
                      want.bound)
              << "row " << r << " column " << c;
        }
      }
      for (const int rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 17}) {
        const std::vector<float> some =
            Run(weights.matrix(), PreparedRows(method(), values, rows, k));
        ASSERT_TRUE(SameBits(some.data(), all.data(), some.size())) << "rows=" << rows;
      }
    }
  }
}

// 128 is the longest chunk of any kernel.
TEST_P(Fp8GemmOnEveryIsa, RowsBeyondAChunkGiveTheBitsOfTheSameRowsAlone) {
  constexpr int kRows = 131, kFirst = 90, kN = 80, kK = 160;
  const PackedWeights weights(method(), kN, kK, RandomFp8Source(11));
  const std::vector<float> values = RandomBf16Values(kRows * kK, 12);
  const std::vector<float> all = Run(weights.matrix(), PreparedRows(method(), values, kRows, kK));
  for (const int first : {kFirst, 128}) {
    const std::vector<float> some(values.begin() + first * kK, values.end());
    const std::vector<float> alone =
        Run(weights.matrix(), PreparedRows(method(), some, kRows - first, kK));
    ASSERT_TRUE(SameBits(alone.data(), all.data() + first * kN, alone.size())) << first;
  }
}

TEST_P(Fp8GemmOnEveryIsa, Fp32SumsAreBitEqualToScalar) {
  if (!AddsInFp32(GetParam())) GTEST_SKIP() << "adds pairs in another order";
  const KernelEntry scalar = SupportedKernels(method()).back();
  ASSERT_STREQ(scalar.isa, "scalar");
  for (const int k : OddK(method())) {
    const PackedWeights weights(method(), 40, k, RandomFp8Source(static_cast<uint32_t>(k)));
    std::vector<float> values = RandomBf16Values(static_cast<size_t>(13 * k), 5);
    // Some so small that products are subnormal.
    for (size_t i = 0; i < values.size(); i += 7) values[i] *= 0x1p-125f;
    const PreparedRows rows(method(), values, 13, k);
    const std::vector<float> got = Run(weights.matrix(), rows);
    const std::vector<float> want = RunGemm(scalar, weights.matrix(), rows.rows(), 0, 3);
    ASSERT_TRUE(SameBits(got.data(), want.data(), got.size())) << "k=" << k;
  }
}

// Row n holds code n alone, so that each output is one weight.
class EachCode final : public QuantSource {
 public:
  void Read(int row, int, int, QuantBlock& out) const override {
    std::memset(&out, 0, sizeof(out));
    out.codes[row % 64] = static_cast<uint8_t>(row);
    std::memset(out.exponents, 128, sizeof(out.exponents));
    out.float_scales[0] = out.float_scales[1] = 2.0f;
  }
};

TEST_P(Fp8GemmOnEveryIsa, EveryCodeIsExact) {
  const PackedWeights weights(method(), 256, 64, EachCode());
  const std::vector<float> out =
      Run(weights.matrix(), PreparedRows(method(), std::vector<float>(64, 1.0f), 1, 64));
  for (size_t code = 0; code < 256; ++code) {
    const double want = 2 * RandomFp8Source::Value(static_cast<uint8_t>(code));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(out[code])) << "code " << code;
    } else {
      EXPECT_EQ(out[code], want) << "code " << code;
    }
  }
}

// One scale of row 3 is replaced.
class WithScale final : public QuantSource {
 public:
  WithScale(float scale, uint8_t exponent) : scale_(scale), exponent_(exponent) {}
  void Read(int row, int column, int count, QuantBlock& out) const override {
    random_.Read(row, column, count, out);
    if (row != 3) return;
    out.float_scales[0] = scale_;
    out.exponents[1] = exponent_;
  }

 private:
  const RandomFp8Source random_{9};
  const float scale_;
  const uint8_t exponent_;
};

TEST_P(Fp8GemmOnEveryIsa, AScaleThatIsNotFiniteMakesItsColumnNanAndNoOther) {
  constexpr int kK = 160;
  const PreparedRows rows(method(), RandomBf16Values(5 * kK, 3), 5, kK);
  const std::vector<float> want =
      Run(PackedWeights(method(), 20, kK, WithScale(1.0f, 127)).matrix(), rows);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> got =
        Run(PackedWeights(method(), 20, kK, WithScale(bad, 255)).matrix(), rows);
    for (size_t i = 0; i < 5 * 32; ++i) {
      if (i % 32 == 3) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else if (i % 32 < 20) {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
  }
}

TEST_P(Fp8GemmOnEveryIsa, TakesTheSmallestAndTheLargestExponents) {
  if (method() != Method::kMXFP8) GTEST_SKIP() << "has no exponents";
  const PreparedRows rows(method(), std::vector<float>(64, 1.0f), 1, 64);
  for (const int exponent : {0, 1, 254}) {
    // Input 32 has the exponent and code 8, 2^-6; the others are zero.
    class Source final : public QuantSource {
     public:
      explicit Source(int exponent) : exponent_(exponent) {}
      void Read(int, int, int, QuantBlock& out) const override {
        std::memset(&out, 0, sizeof(out));
        out.codes[32] = 0x40;
        out.exponents[1] = static_cast<uint8_t>(exponent_);
      }

     private:
      const int exponent_;
    };
    const PackedWeights weights(method(), 1, 64, Source(exponent));
    const double want = std::ldexp(2.0, exponent - 127);
    EXPECT_EQ(Run(weights.matrix(), rows)[0], static_cast<float>(want)) << exponent;
  }
}

// A published matrix of 128 x 128 blocks, from (row, column) on.
class BlocksFrom final : public QuantSource {
 public:
  BlocksFrom(int row, int column) : row_(row), column_(column) {}
  void Read(int row, int column, int count, QuantBlock& out) const override {
    const int first = column_ + column;
    for (int i = 0; i < count; ++i) out.codes[i] = Code(row_ + row, first + i);
    for (int half = 0; half * 128 < count; ++half) {
      const int grid = (row_ + row) / 128 * 7 + (first + half * 128) / 128;
      out.float_scales[half] = 1.0f + static_cast<float>(grid) / 16;
    }
  }

 private:
  static uint8_t Code(int row, int column) {
    return static_cast<uint8_t>((row * 37 + column * 11) % 127);
  }
  const int row_;
  const int column_;
};

TEST_P(Fp8GemmOnEveryIsa, ASliceOfTheOutputsMayBeginInsideABlock) {
  if (method() != Method::kFP8_BLOCK) GTEST_SKIP() << "has no blocks of rows";
  constexpr int kN = 300, kK = 200;
  const PreparedRows rows(method(), RandomBf16Values(3 * kK, 4), 3, kK);
  const std::vector<float> whole =
      Run(PackedWeights(method(), kN, kK, BlocksFrom(0, 0)).matrix(), rows);
  for (const int begin : {1, 40, 127, 128, 200}) {
    const int n = kN - begin;
    const PackedWeights slice(method(), n, kK, BlocksFrom(begin, 0));
    const std::vector<float> part = Run(slice.matrix(), rows);
    const size_t width = static_cast<size_t>(slice.matrix().num_panels()) * 16;
    for (size_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(SameBits(part.data() + r * width,
                           whole.data() + r * 304 + static_cast<size_t>(begin),
                           static_cast<size_t>(n)))
          << "from " << begin << " row " << r;
    }
  }
}

TEST_P(Fp8GemmOnEveryIsa, SlicesOfTheInputsAddUp) {
  if (method() != Method::kFP8_BLOCK) GTEST_SKIP() << "has no blocks of rows";
  constexpr int kN = 20, kK = 500;
  const std::vector<float> values = RandomBf16Values(kK, 4);
  std::vector<double> sums(kN);
  for (int begin = 0; begin < kK; begin += KSliceMultiple(method())) {
    const int k = std::min(KSliceMultiple(method()), kK - begin);
    const PackedWeights slice(method(), kN, k, BlocksFrom(0, begin));
    const std::vector<float> part(values.begin() + begin, values.begin() + begin + k);
    const std::vector<float> out = Run(slice.matrix(), PreparedRows(method(), part, 1, k));
    for (size_t c = 0; c < kN; ++c) sums[c] += out[c];
  }
  for (int c = 0; c < kN; ++c) {
    const Expected want = ExpectedProduct(BlocksFrom(0, 0), method(), c, kK, values.data());
    EXPECT_NEAR(sums[static_cast<size_t>(c)], want.value, want.bound) << "column " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Fp8GemmOnEveryIsa, ::testing::ValuesIn(SupportedFp8Kernels()),
                         KernelName);

TEST(KSliceMultiple, IsWhatTheInputsShareAScaleBy) {
  EXPECT_EQ(KSliceMultiple(Method::kFP8_BLOCK), 128);
  EXPECT_EQ(KSliceMultiple(Method::kFP8_ROW), 1);
  EXPECT_EQ(KSliceMultiple(Method::kMXFP8), 32);
  EXPECT_EQ(KSliceMultiple(Method::kINT4G128), 128);
  EXPECT_EQ(KSliceMultiple(Method::kBF16), 1);
}

}  // namespace
}  // namespace atelier
