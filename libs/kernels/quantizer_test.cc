#include "libs/kernels/quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "libs/base/float16.h"
#include "libs/testing/packed_weights.h"
#include "libs/testing/random_quant_source.h"

namespace atelier {
namespace {

using testing::RandomBf16Values;
using testing::RandomQuantSource;

constexpr int kRows = 24;
constexpr int kColumns = 768;

// Values [kRows, kColumns] read back from the codes and scales of `method`.
std::vector<double> Kept(const std::vector<float>& values, Method method) {
  const QuantizingSource source({DType::kF32, values.data(), kColumns}, method);
  std::vector<double> kept;
  QuantBlock block{};
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; column += 256) {
      source.Read(row, column, 256, block);
      for (int i = 0; i < 256; ++i) {
        kept.push_back(RandomQuantSource::Weight(*BlockFormatOf(method), block, i));
      }
    }
  }
  return kept;
}

double SquaredError(const std::vector<float>& values, const std::vector<double>& kept) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += (values[i] - kept[i]) * (values[i] - kept[i]);
  return sum;
}

double CodeOf(double value) { return std::clamp(std::nearbyint(value), -8.0, 7.0); }

// The plain way: largest magnitude / 7, to nearest.
double PlainError(const std::vector<float>& values, int group) {
  double sum = 0;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(group)) {
    double peak = 0;
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) {
      peak = std::max(peak, std::fabs(double{values[i]}));
    }
    for (size_t i = first; i < first + static_cast<size_t>(group); ++i) {
      const double error = values[i] - CodeOf(values[i] / (peak / 7)) * (peak / 7);
      sum += error * error;
    }
  }
  return sum;
}

// No scale at all does better: tries a thousand of either sign, each with the best factor.
double LeastError(const std::vector<float>& values, int group) {
  double sum = 0;
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(group)) {
    const std::vector<float> part(values.begin() + static_cast<ptrdiff_t>(first),
                                  values.begin() + static_cast<ptrdiff_t>(first) + group);
    double peak = 0, energy = 0, gain = 0;
    for (const double value : part) {
      peak = std::max(peak, std::fabs(value));
      energy += value * value;
    }
    for (int t = -500; t <= 500; ++t) {
      const double divisor = t < 0 ? -4 + 0.02 * t : 4 + 0.02 * t;
      double wq = 0, qq = 0;
      for (const double value : part) {
        const double code = CodeOf(value * divisor / peak);
        wq += code * value;
        qq += code * code;
      }
      if (qq > 0) gain = std::max(gain, wq * wq / qq);
    }
    sum += energy - gain;
  }
  return sum;
}

std::vector<float> Gaussian() { return RandomBf16Values(kRows * kColumns, 3, 0.02f); }

std::vector<float> WithOutlierColumns() {
  std::vector<float> values = Gaussian();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % kColumns % 97 == 5) values[i] *= 50;
  }
  return values;
}

class Int4Groups : public ::testing::TestWithParam<Method> {
 protected:
  int group() const { return KMultiple(GetParam()); }
};

TEST_P(Int4Groups, LosesAQuarterLessThanPlainRounding) {
  const std::vector<float> values = Gaussian();
  const double error = SquaredError(values, Kept(values, GetParam()));
  EXPECT_LT(error, 0.75 * PlainError(values, group()));
}

// Outliers decide the scale of their group whatever is done; nothing may get worse.
TEST_P(Int4Groups, IsNearTheBestScaleThereIs) {
  for (const std::vector<float>& values : {Gaussian(), WithOutlierColumns()}) {
    const double error = SquaredError(values, Kept(values, GetParam()));
    EXPECT_LT(error, PlainError(values, group()));
    EXPECT_LT(error, 1.01 * LeastError(values, group()));
  }
}

TEST_P(Int4Groups, KeepsWeightsThatAreOnAGridExactly) {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t in_group = i % static_cast<size_t>(group());
    const int code = in_group < 16 ? static_cast<int>(in_group) - 8 : static_cast<int>(i % 7) - 3;
    values[i] = 0.03125f * static_cast<float>(code);
  }
  EXPECT_EQ(SquaredError(values, Kept(values, GetParam())), 0);
  const QuantizingSource source({DType::kF32, values.data(), kColumns}, GetParam());
  QuantBlock block{};
  source.Read(0, 0, group(), block);
  EXPECT_EQ(std::set<int>(block.codes, block.codes + group()).size(), 16u);
}

TEST_P(Int4Groups, KeepsZerosAndTheSmallest) {
  std::vector<float> values(kRows * kColumns, 0.0f);
  EXPECT_EQ(SquaredError(values, Kept(values, GetParam())), 0);
  values.assign(values.size(), std::numeric_limits<float>::denorm_min());
  for (const double kept : Kept(values, GetParam())) EXPECT_EQ(kept, 0);
}

INSTANTIATE_TEST_SUITE_P(Quantizer, Int4Groups,
                         ::testing::Values(Method::kINT4G32, Method::kINT4G64, Method::kINT4G128),
                         [](const auto& info) { return std::string(MethodName(info.param)); });

class QuantizedMethods : public ::testing::TestWithParam<Method> {};

TEST_P(QuantizedMethods, DoNotDependOnHowARowIsRead) {
  const Method method = GetParam();
  const int group = KMultiple(method);
  const std::vector<float> values = Gaussian();
  const QuantizingSource source({DType::kF32, values.data(), kColumns}, method);
  QuantBlock whole{}, part{};
  source.Read(2, 256, 256, whole);
  for (int first = 0; first < 256; first += group) {
    source.Read(2, 256 + first, group, part);
    EXPECT_EQ(std::memcmp(part.codes, whole.codes + first, static_cast<size_t>(group)), 0);
    if (method == Method::kMXFP4) {
      EXPECT_EQ(part.exponents[0], whole.exponents[first / group]);
    } else {
      EXPECT_EQ(part.half_scales[0], whole.half_scales[first / group]);
    }
  }
}

TEST_P(QuantizedMethods, MarkTheGroupOfANanOrAnInfinityAndNoOther) {
  const Method method = GetParam();
  const int group = KMultiple(method);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = Gaussian();
    values[static_cast<size_t>(group) + 3] = bad;
    const std::vector<double> kept = Kept(values, method);
    for (int i = 0; i < kColumns; ++i) {
      EXPECT_EQ(std::isnan(kept[static_cast<size_t>(i)]), i / group == 1) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quantizer, QuantizedMethods, ::testing::ValuesIn([] {
                           std::vector<Method> methods;
                           for (const Method method : AllMethods()) {
                             if (CanQuantizeTo(method)) methods.push_back(method);
                           }
                           return methods;
                         }()),
                         [](const auto& info) { return std::string(MethodName(info.param)); });

// The published rule by hand: the scale is 2^(floor(log2 amax) - 2); ties go to the even code.
TEST(Quantizer, Mxfp4IsTheOcpConversion) {
  std::vector<float> values(32, 0.0f);
  const float inputs[] = {7.9f, -6.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, -0.26f};
  const uint8_t codes[] = {7, 15, 0, 2, 2, 4, 4, 6, 6, 9};
  for (const float unit : {1.0f, 0x1p-9f, 0x1p30f}) {
    for (size_t i = 0; i < std::size(inputs); ++i) values[i] = inputs[i] * unit;
    QuantBlock block{};
    QuantizingSource({DType::kF32, values.data(), 32}, Method::kMXFP4).Read(0, 0, 32, block);
    EXPECT_EQ(block.exponents[0], 127 + std::ilogb(unit));
    for (size_t i = 0; i < std::size(codes); ++i) EXPECT_EQ(block.codes[i], codes[i]) << inputs[i];
  }
}

TEST(Quantizer, Q8RoundsToTheNearestStep) {
  const std::vector<float> values = Gaussian();
  const std::vector<double> kept = Kept(values, Method::kQ8_0);
  for (size_t first = 0; first < values.size(); first += 32) {
    double peak = 0;
    for (size_t i = first; i < first + 32; ++i) {
      peak = std::max(peak, std::fabs(double{values[i]}));
    }
    // Half a step, and what the scale's own rounding moves 127 steps by.
    const double bound = peak / 127 * (0.5 + 127 * 0x1p-11);
    for (size_t i = first; i < first + 32; ++i) EXPECT_NEAR(kept[i], values[i], bound);
  }
}

TEST(Quantizer, ReadsEveryFloatTypeAndPart) {
  const std::vector<float> values = Gaussian();
  std::vector<uint16_t> bf16(values.size());
  for (size_t i = 0; i < values.size(); ++i) bf16[i] = ToBFloat16(values[i]).bits;
  QuantBlock from_floats{}, from_bf16{};
  QuantizingSource({DType::kF32, values.data() + kColumns + 64, kColumns}, Method::kINT4G64)
      .Read(0, 0, 256, from_floats);
  QuantizingSource({DType::kBF16, bf16.data(), kColumns}, Method::kINT4G64)
      .Read(1, 64, 256, from_bf16);
  EXPECT_EQ(std::memcmp(from_floats.codes, from_bf16.codes, 256), 0);
  EXPECT_EQ(std::memcmp(from_floats.half_scales, from_bf16.half_scales, 8), 0);
}

TEST(Float16, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = Float16ToFloat(half);
    ASSERT_EQ(ToFloat16(value), half);
    ASSERT_EQ(ToFloat16(-value), half | 0x8000);
    const float next = bits == 0x7bff ? 65536.0f : Float16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = value + (next - value) / 2;
    ASSERT_EQ(ToFloat16(middle), half % 2 == 0 ? half : half + 1) << bits;
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 0.0f)), half) << bits;
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 1e9f)), half + 1) << bits;
  }
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(ToFloat16(std::nanf("")), 0x7e00);
}

}  // namespace
}  // namespace atelier
