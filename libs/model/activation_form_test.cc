#include "libs/model/activation_form.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

constexpr ActivationForm kForms[] = {ActivationForm::kInt8Row, ActivationForm::kInt8Blocks};

struct Quantized {
  std::vector<int8_t> codes;
  std::vector<float> scales;
};

Quantized Quantize(ActivationForm form, const std::vector<float>& values) {
  std::vector<BFloat16> row;
  for (const float value : values) row.push_back(ToBFloat16(value));
  const int width = static_cast<int>(row.size());
  Quantized result{std::vector<int8_t>(row.size(), 99),
                   std::vector<float>(ScalesPerRow(form, width), 99.0f)};
  QuantizeRow(form, row.data(), width, result.codes.data(), result.scales.data());
  return result;
}

TEST(ActivationForm, HasAScaleForEachBlockBegun) {
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Row, 1), 1u);
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Row, 7168), 1u);
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Blocks, 1), 1u);
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Blocks, 256), 1u);
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Blocks, 257), 2u);
  EXPECT_EQ(ScalesPerRow(ActivationForm::kInt8Blocks, 7168), 28u);
}

TEST(ActivationForm, LargestOfWhatSharesAScaleBecomes127) {
  std::vector<float> values(300, 0.0f);
  values[3] = -2.0f;
  values[299] = 0.5f;
  const Quantized row = Quantize(ActivationForm::kInt8Row, values);
  EXPECT_EQ(row.scales[0], 2.0f / 127.0f);
  EXPECT_EQ(row.codes[3], -127);
  EXPECT_EQ(row.codes[299], 32);
  const Quantized blocks = Quantize(ActivationForm::kInt8Blocks, values);
  EXPECT_THAT(blocks.scales, ::testing::ElementsAre(2.0f / 127.0f, 0.5f / 127.0f));
  EXPECT_EQ(blocks.codes[3], -127);
  EXPECT_EQ(blocks.codes[299], 127);
}

TEST(ActivationForm, ARowThatIsNotFiniteHasNoScaleThatIs) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0, 255, 256, 299}) {
      std::vector<float> values(300, 1.0f);
      values[at] = bad;
      for (const ActivationForm form : kForms) {
        for (const float scale : Quantize(form, values).scales) EXPECT_TRUE(std::isnan(scale));
      }
    }
  }
}

}  // namespace
}  // namespace atelier
