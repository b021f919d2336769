#include "tests/golden/random_weights.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "libs/base/float16.h"

namespace atelier::golden {
namespace {

std::vector<float> Values(const testing::RawTensor& tensor) {
  std::vector<float> values(tensor.data.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    BFloat16 element;
    std::memcpy(&element, tensor.data.data() + 2 * i, 2);
    values[i] = ToFloat(element);
  }
  return values;
}

// splitmix64 of fnv1a64("x"), worked out by the Python side.
TEST(RandomWeights, AreThoseOfThePythonSide) {
  const RandomTensor tensor{.name = "x", .shape = {4}, .dtype = DType::kF32, .mean = 0, .scale = 1};
  std::vector<float> values(4);
  const testing::RawTensor raw = Generate(tensor);
  std::memcpy(values.data(), raw.data.data(), 16);
  EXPECT_EQ(values, (std::vector<float>{-16255, 52148, 49504, 68718}));
}

TEST(RandomWeights, HaveTheMeanAndSpreadAskedFor) {
  const float scale = static_cast<float>(0.5 * 1.7320508 / 65536);  // standard deviation 0.5
  const std::vector<float> values =
      Values(Generate({.name = "w", .shape = {100, 100}, .mean = 1, .scale = scale}));
  double sum = 0, squares = 0;
  for (float value : values) {
    sum += value;
    squares += (value - 1.0) * (value - 1.0);
  }
  // Four standard errors of 10^4 samples.
  EXPECT_NEAR(sum / 1e4, 1.0, 4 * 0.5 / 100);
  EXPECT_NEAR(std::sqrt(squares / 1e4), 0.5, 4 * 0.5 / 141);
}

}  // namespace
}  // namespace atelier::golden
