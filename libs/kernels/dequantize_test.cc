#include "libs/model/dequantize.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/random_quant_source.h"

// Here and not in libs/model, because the oracle is made of the kernels' descriptions.

namespace atelier {
namespace {

using ::atelier::testing::RandomFp8Source;
using ::atelier::testing::RandomQuantSource;

constexpr int kColumns = 256;

void ExpectNear(float got, double want, double terms, Method method, int k) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << MethodName(method) << " " << k;
    return;
  }
  // A product and a sum, each rounded once.
  EXPECT_LE(std::fabs(static_cast<double>(got) - want), 0x1p-23 * terms + 0x1p-149)
      << MethodName(method) << " " << k;
}

TEST(Dequantize, IsWhatEveryBlockMethodStandsFor) {
  for (const Method method : AllMethods()) {
    const BlockFormat* format = BlockFormatOf(method);
    if (format == nullptr) continue;
    for (int row = 0; row < 20; ++row) {
      QuantBlock block;
      RandomQuantSource(method, 3).Read(row, 0, kColumns, block);
      block.exponents[1] = static_cast<uint8_t>(row % 2);
      block.exponents[2] = row == 5 ? 255 : 254;
      std::vector<float> values(kColumns);
      Dequantize(method, false, block, kColumns, values.data());
      for (int k = 0; k < kColumns; ++k) {
        const double want = RandomQuantSource::Weight(*format, block, k);
        if (std::fabs(want) > 3e38) continue;
        ExpectNear(values[static_cast<size_t>(k)], want,
                   RandomQuantSource::Terms(*format, block, k), method, k);
      }
    }
  }
}

TEST(Dequantize, TakesBf16Scales) {
  QuantBlock block{};
  block.codes[0] = 0;  // -8
  block.codes[31] = 15;
  block.half_scales[0] = ToBFloat16(3.5f).bits;
  float values[32];
  Dequantize(Method::kINT4G32, true, block, 32, values);
  EXPECT_EQ(values[0], -28.0f);
  EXPECT_EQ(values[31], 24.5f);
}

TEST(Dequantize, KnowsAllCodesOfFp8) {
  for (const Method method : {Method::kFP8_BLOCK, Method::kFP8_ROW, Method::kMXFP8}) {
    QuantBlock block{};
    for (int code = 0; code < 256; ++code) block.codes[code] = static_cast<uint8_t>(code);
    for (size_t j = 0; j < 8; ++j) block.exponents[j] = static_cast<uint8_t>(j == 7 ? 0 : 120 + j);
    block.float_scales[0] = 0.3f;
    block.float_scales[1] = -1e-3f;
    std::vector<float> values(256, 77.0f);
    Dequantize(method, false, block, 250, values.data());  // a row may end anywhere
    EXPECT_EQ(values[250], method == Method::kMXFP8 ? values[250] : 77.0f);
    for (int k = 0; k < 250; ++k) {
      const int group = method == Method::kFP8_BLOCK ? k / 128 : 0;
      const double scale = method == Method::kMXFP8
                               ? std::ldexp(1.0, block.exponents[k / 32] - 127)
                               : static_cast<double>(block.float_scales[group]);
      const double want = scale * RandomFp8Source::Value(static_cast<uint8_t>(k));
      ExpectNear(values[static_cast<size_t>(k)], want, std::fabs(want), method, k);
    }
  }
}

}  // namespace
}  // namespace atelier
