#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier::testing {
namespace {

constexpr char kSmall[] = R"({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 48,
    "moe_intermediate_size": 32, "intermediate_size": 48})";
constexpr char kMatrix[] = "model.layers.1.mlp.experts.3.up_proj.weight";

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values;
  for (size_t i = 0; i < tensor.data.size(); i += DTypeBytes(tensor.dtype)) {
    uint16_t half = 0;
    std::memcpy(&half, tensor.data.data() + i, 2);
    float value = tensor.dtype == DType::kF16 ? Float16ToFloat(half) : ToFloat(BFloat16{half});
    if (tensor.dtype == DType::kF32) std::memcpy(&value, tensor.data.data() + i, 4);
    values.push_back(value);
  }
  return values;
}

std::vector<float> Written(const SyntheticSpec& spec, const std::string& name) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), spec);
  return Floats(Checkpoint::Open(dir.path()).value()->Find(name).value());
}

TEST(SyntheticCheckpoint, DependsOnNothingButTheSpec) {
  const SyntheticSpec spec{.config_json = TinyGlm4MoeConfig(kSmall), .seed = 7};
  TempDir a, b;
  WriteSyntheticCheckpoint(a.path(), spec);
  WriteSyntheticCheckpoint(b.path(), spec);
  EXPECT_EQ(ReadFile(a.File("model.safetensors")), ReadFile(b.File("model.safetensors")));
  const std::vector<float> values = Written(spec, kMatrix);
  SyntheticSpec sharded = spec;
  sharded.num_files = 3;
  EXPECT_EQ(Written(sharded, kMatrix), values);
  SyntheticSpec reseeded = spec;
  reseeded.seed = 8;
  EXPECT_NE(Written(reseeded, kMatrix), values);
  EXPECT_NE(Written(spec, "model.layers.1.mlp.experts.2.up_proj.weight"), values);
}

TEST(SyntheticCheckpoint, HasTheAskedSpread) {
  const SyntheticSpec spec{.config_json = TinyGlm4MoeConfig(kSmall), .weight_scale = 0.25};
  double sum = 0, squares = 0;
  const std::vector<float> values = Written(spec, kMatrix);
  for (double value : values) {
    sum += value;
    squares += value * value;
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors of the mean, and of the variance of a normal distribution.
  EXPECT_NEAR(sum / n, 0, 5 * 0.25 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 0.0625, 5 * 0.0625 * std::sqrt(2 / n));
}

TEST(SyntheticCheckpoint, RoundsTheSameValuesToEveryDtype) {
  SyntheticSpec spec{.config_json = TinyQwen3MoeConfig(kSmall), .dtype = DType::kF32};
  const std::vector<float> exact = Written(spec, kMatrix);
  spec.dtype = DType::kF16;
  const std::vector<float> half = Written(spec, kMatrix);
  spec.dtype = DType::kBF16;
  const std::vector<float> bfloat = Written(spec, kMatrix);
  ASSERT_EQ(exact.size(), half.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    // Half a unit in the last place: 2^-11 relative, or half the smallest subnormal.
    EXPECT_NEAR(half[i], exact[i], std::max(std::abs(exact[i]) * 0x1p-11f, 0x1p-25f));
    EXPECT_EQ(bfloat[i], ToFloat(ToBFloat16(exact[i])));
  }
}

TEST(TinyConfig, TakesAMergePatch) {
  EXPECT_THAT(ParseModelConfig(TinyQwen3MoeConfig(R"({"vocab_size": 99})"))->vocab_size, 99);
  EXPECT_THAT(ParseModelConfig(TinyGlm4MoeConfig(R"({"n_group": 4})"))->moe.num_groups, 4);
}

}  // namespace
}  // namespace atelier::testing
