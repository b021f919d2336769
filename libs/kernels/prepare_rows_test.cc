#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/checked_math.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/testing/packed_weights.h"

namespace atelier {
namespace {

using testing::PreparedRows;
using testing::RandomBf16Values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

std::vector<int> Codes(const PreparedRows& prepared, int row, int count) {
  const uint8_t* data = prepared.rows().data + static_cast<size_t>(row) * prepared.rows().stride;
  std::vector<int> codes;
  for (int i = 0; i < count; ++i) codes.push_back(static_cast<int8_t>(data[i]));
  return codes;
}

TEST(PrepareRowsInt8, LargestMagnitudeBecomes127) {
  const PreparedRows prepared(Method::kINT8, {0.0f, 0.25f, -1.0f, 0.5f}, 1, 4);
  EXPECT_THAT(Codes(prepared, 0, 6), ::testing::ElementsAre(0, 32, -127, 64, 0, 0));
  EXPECT_EQ(prepared.rows().scales[0], 1.0f / 127.0f);
}

TEST(PrepareRowsInt8, ExtremesOfTheFloatRangeStayFinite) {
  const std::vector<float> values = {kLargest,
                                     -kLargest,  //
                                     kSmallest,
                                     -kSmallest,  //
                                     kSmallestNormal,
                                     0.0f,  //
                                     kSmallestNormal * 127,
                                     kSmallestNormal * -127,
                                     0.0f,
                                     -0.0f};
  const PreparedRows prepared(Method::kINT8, values, 5, 2);
  EXPECT_THAT(Codes(prepared, 0, 2), ::testing::ElementsAre(127, -127));
  EXPECT_THAT(Codes(prepared, 1, 2), ::testing::ElementsAre(0, 0));
  EXPECT_THAT(Codes(prepared, 2, 2), ::testing::ElementsAre(1, 0));
  EXPECT_THAT(Codes(prepared, 3, 2), ::testing::ElementsAre(127, -127));
  EXPECT_THAT(Codes(prepared, 4, 2), ::testing::ElementsAre(0, 0));
  for (int r = 0; r < 5; ++r) EXPECT_TRUE(std::isnormal(prepared.rows().scales[r])) << r;
}

TEST(PrepareRowsInt8, RowThatIsNotFiniteHasScaleNan) {
  const PreparedRows prepared(Method::kINT8,
                              {1.0f, kNan, 1.0f, kInfinity, -kInfinity, 1.0f, 1.0f, 2.0f}, 4, 2);
  for (int r : {0, 1, 2}) EXPECT_TRUE(std::isnan(prepared.rows().scales[r])) << r;
  EXPECT_EQ(prepared.rows().scales[3], 2.0f / 127.0f);
}

TEST(PrepareRowsInt8, ErrorIsAtMostHalfAStep) {
  constexpr int kRows = 20, kK = 333;
  const std::vector<float> values = RandomBf16Values(kRows * kK, 1, 3.0f);
  const PreparedRows prepared(Method::kINT8, values, kRows, kK);
  for (int r = 0; r < kRows; ++r) {
    const double scale = prepared.rows().scales[r];
    const std::vector<int> codes = Codes(prepared, r, kK);
    for (int i = 0; i < kK; ++i) {
      const double value = values[static_cast<size_t>(r * kK + i)];
      ASSERT_LE(std::fabs(value - codes[static_cast<size_t>(i)] * scale),
                scale * (0.5 + 127 * 0x1p-22));
    }
  }
}

std::vector<uint16_t> Bf16Bits(const PreparedRows& prepared, int row, size_t count) {
  std::vector<uint16_t> bits(count);
  std::memcpy(bits.data(), prepared.rows().data + static_cast<size_t>(row) * prepared.rows().stride,
              count * 2);
  return bits;
}

TEST(PrepareRowsBf16, RoundsToNearestEvenAndPadsWithZeros) {
  const PreparedRows prepared(Method::kBF16, {1.00390625f, -2.0f, kSmallest}, 1, 3);
  EXPECT_THAT(Bf16Bits(prepared, 0, 5), ::testing::ElementsAre(0x3f80, 0xc000, 0, 0, 0));
  EXPECT_EQ(prepared.rows().stride, 64u);
}

TEST(PrepareRowsBf16, RowThatIsNotFiniteOrRoundsToInfinityIsAllNan) {
  const PreparedRows prepared(Method::kBF16,
                              {1.0f, kNan, kInfinity, 1.0f, kLargest, 1.0f, 3.0f, 2.0f}, 4, 2);
  for (int r : {0, 1, 2}) {
    EXPECT_THAT(Bf16Bits(prepared, r, 3), ::testing::ElementsAre(0x7fc0, 0x7fc0, 0)) << r;
  }
  EXPECT_THAT(Bf16Bits(prepared, 3, 3), ::testing::ElementsAre(0x4040, 0x4000, 0));
}

TEST(PrepareRows, StrideSpreadsRowsOverTheCache) {
  for (const Method method : AllMethods()) {
    for (int k = 256; k <= 8192; k += 256) {
      const size_t stride = ActivationRowBytes(method, k);
      EXPECT_EQ(stride % 128, 64u) << MethodName(method) << " k=" << k;
    }
  }
}

TEST(PrepareRows, Bf16InputGivesTheSameBytesAsItsFloats) {
  constexpr int kRows = 3, kK = 45, kStride = 50;
  std::vector<float> floats = RandomBf16Values(kRows * kStride, 2);
  floats[kStride + 7] = kNan;
  std::vector<BFloat16> halves;
  for (float value : floats) halves.push_back(ToBFloat16(value));
  for (Method method : {Method::kBF16, Method::kINT8}) {
    const size_t bytes = kRows * ActivationRowBytes(method, kK);
    std::vector<uint8_t> from_floats(bytes, 0xee), from_halves(bytes, 0xdd);
    float scales[2][kRows] = {};
    PrepareRows(method, floats.data(), kStride, kRows, kK, from_floats.data(), scales[0]);
    PrepareRows(method, halves.data(), kStride, kRows, kK, from_halves.data(), scales[1]);
    EXPECT_EQ(from_floats, from_halves);
    EXPECT_EQ(std::memcmp(scales[0], scales[1], sizeof(scales[0])), 0);
  }
}

// Rows as a frontend may send them: of every magnitude, with what is not finite anywhere.
std::vector<std::vector<BFloat16>> RowsOfEveryKind(int k) {
  std::vector<std::vector<float>> rows;
  for (const float magnitude : {1.0f, 1e-38f, 1e38f, 0.0f}) {
    rows.push_back(RandomBf16Values(static_cast<size_t>(k), 3, magnitude));
  }
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const int at : {0, k / 2, k - 1}) {
      rows.push_back(rows[0]);
      rows.back()[static_cast<size_t>(at)] = bad;
    }
  }
  std::vector<std::vector<BFloat16>> result;
  for (const std::vector<float>& row : rows) {
    result.emplace_back();
    for (const float value : row) result.back().push_back(ToBFloat16(value));
  }
  return result;
}

TEST(PlaceQuantizedRow, GivesTheBytesOfTheRowItself) {
  int cases = 0;
  for (const Method method : AllMethods()) {
    const ActivationForm form = ActivationFormOf(method);
    if (form == ActivationForm::kBf16) continue;
    for (const int wanted : {1, 31, 255, 256, 257, 300, 1408, 7168}) {
      const int k = RoundUp(wanted, KMultiple(method));
      SCOPED_TRACE(::testing::Message() << MethodName(method) << " k=" << k);
      for (const std::vector<BFloat16>& row : RowsOfEveryKind(k)) {
        const size_t bytes = ActivationRowBytes(method, k);
        std::vector<uint8_t> want(bytes, 0xee), got(bytes, 0xee);
        float want_scale = 77.0f, got_scale = 77.0f;
        PrepareRows(method, row.data(), row.size(), 1, k, want.data(), &want_scale);
        std::vector<int8_t> codes(row.size());
        std::vector<float> scales(ScalesPerRow(form, k));
        QuantizeRow(form, row.data(), k, codes.data(), scales.data());
        PlaceQuantizedRow(method, codes.data(), scales.data(), k, got.data(), &got_scale);
        ASSERT_EQ(want, got);
        ASSERT_EQ(std::memcmp(&want_scale, &got_scale, sizeof(float)), 0);
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 19 * 8 * 13 / 2);
}

TEST(PlaceQuantizedRow, TakesTheOneCodeThatNoRowHasForTheNextOne) {
  const int8_t codes[4] = {-128, -127, 127, 0};
  const float scale = 1.0f;
  for (const Method method : {Method::kINT8, Method::kINT4G32}) {
    std::vector<uint8_t> data(ActivationRowBytes(method, 4), 0xee);
    float placed = 0.0f;
    PlaceQuantizedRow(method, codes, &scale, 4, data.data(), &placed);
    const std::vector<int> got(reinterpret_cast<int8_t*>(data.data()),
                               reinterpret_cast<int8_t*>(data.data()) + 5);
    EXPECT_THAT(got, ::testing::ElementsAre(-127, -127, 127, 0, 0));
  }
}

}  // namespace
}  // namespace atelier
