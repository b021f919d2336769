#include "libs/checkpoint/expert_biases.h"

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::RawTensor;
using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPrefix[] = "model.layers.0.mlp.experts.";

// H 4, I 3, two experts with biases; only the given tensors.
class ExpertBiasesTest : public ::testing::Test {
 protected:
  // Values first, first + 1, …
  static RawTensor Counting(std::vector<int64_t> shape, float first, size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    RawTensor tensor{DType::kF32, std::move(shape), std::string(count * sizeof(float), '\0')};
    std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
    return tensor;
  }

  std::unique_ptr<Checkpoint> Write(const std::map<std::string, RawTensor>& tensors,
                                    const char* bias = "true") {
    testing::WriteSyntheticCheckpoint(
        dir_.path(),
        {.config_json = testing::TinyQwen3MoeConfig(
             std::string(R"({"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 4,
             "head_dim": 2, "vocab_size": 6, "moe_intermediate_size": 3, "num_experts": 2,
             "mlp_bias": )") +
             bias + "}")});
    testing::WriteSafetensors(dir_.File("model.safetensors"), tensors);
    return Checkpoint::Open(dir_.path()).value();
  }

  testing::TempDir dir_;
};

TEST_F(ExpertBiasesTest, CutsAnExpertOutOfItsLayersTensors) {
  const auto checkpoint =
      Write({{std::string(kPrefix) + "gate_up_proj_bias", Counting({2, 6}, 0, 12)},
             {std::string(kPrefix) + "down_proj_bias", Counting({2, 4}, 20, 8)}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertBiases biases, FindExpertBiases(*checkpoint, 0, 1));
  EXPECT_THAT(biases.gate, ElementsAre(6, 7, 8));
  EXPECT_THAT(biases.up, ElementsAre(9, 10, 11));
  EXPECT_THAT(biases.down, ElementsAre(24, 25, 26, 27));
}

TEST_F(ExpertBiasesTest, ReadsOnesOfTheirOwnAndNamesAWrongShape) {
  const std::string expert = std::string(kPrefix) + "1.";
  std::map<std::string, RawTensor> tensors = {{expert + "gate_proj.bias", Counting({3}, 0, 3)},
                                              {expert + "up_proj.bias", Counting({3}, 3, 3)},
                                              {expert + "down_proj.bias", Counting({4}, 6, 4)}};
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertBiases biases, FindExpertBiases(*Write(tensors), 0, 1));
  EXPECT_THAT(biases.gate, ElementsAre(0, 1, 2));
  EXPECT_THAT(biases.up, ElementsAre(3, 4, 5));
  EXPECT_THAT(biases.down, ElementsAre(6, 7, 8, 9));
  tensors[expert + "up_proj.bias"] = Counting({4}, 0, 4);
  EXPECT_THAT(FindExpertBiases(*Write(tensors), 0, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("up_proj.bias")));
}

TEST_F(ExpertBiasesTest, AreEmptyWhereTheModelHasNone) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ExpertBiases biases,
      FindExpertBiases(*Write({{"x", Counting({1}, 0, 1)}}, "false"), 0, 1));
  EXPECT_THAT(biases.gate, IsEmpty());
  EXPECT_THAT(biases.down, IsEmpty());
}

}  // namespace
}  // namespace atelier
