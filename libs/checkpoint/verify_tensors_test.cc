#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::IsOk;
using ::atelier::testing::RawTensor;
using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::atelier::testing::TinyGlm4MoeConfig;
using ::atelier::testing::TinyQwen3MoeConfig;
using ::atelier::testing::WriteSafetensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

constexpr char kSmall[] = R"({"hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 6, "intermediate_size": 5,
    "moe_intermediate_size": 3, "num_experts": 2, "num_experts_per_tok": 1})";
constexpr char kSmallGlm[] = R"({"hidden_size": 4, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 6,
    "intermediate_size": 5, "moe_intermediate_size": 3, "n_routed_experts": 2,
    "num_experts_per_tok": 1, "n_shared_experts": 2})";

// A small model whose tensors a test can change before it is written.
class VerifyTensorsTest : public ::testing::Test {
 protected:
  explicit VerifyTensorsTest(std::string config = TinyQwen3MoeConfig(kSmall)) {
    UseConfig(std::move(config));
  }

  // Each tensor holds its own name's bytes, repeated, so that views can be recognised.
  void Add(const PromisedTensor& promised) {
    RawTensor tensor{.dtype = DType::kBF16, .shape = promised.shape, .data = ""};
    size_t bytes = 2;
    for (int64_t dim : promised.shape) bytes *= static_cast<size_t>(dim);
    while (tensor.data.size() < bytes) tensor.data += promised.name;
    tensor.data.resize(bytes);
    tensors_[promised.name] = tensor;
  }

  void UseConfig(std::string config_json) {
    config_json_ = std::move(config_json);
    config_ = ParseModelConfig(config_json_).value();
    tensors_.clear();
    for (const PromisedTensor& tensor : FrontendTensors(config_)) Add(tensor);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      if (!config_.is_moe_layer[static_cast<size_t>(layer)]) continue;
      for (int expert = 0; expert < config_.moe.num_experts; ++expert) {
        for (const PromisedTensor& tensor : ExpertTensorsAlone(config_, layer, expert)) Add(tensor);
      }
    }
  }

  std::unique_ptr<Checkpoint> Write() {
    testing::WriteSyntheticCheckpoint(dir_.path(), {.config_json = config_json_});
    WriteSafetensors(dir_.File("model.safetensors"), tensors_);
    return Checkpoint::Open(dir_.path()).value();
  }

  std::string config_json_;
  ModelConfig config_;
  std::map<std::string, RawTensor> tensors_;
  TempDir dir_;
};

std::vector<std::string> NamesAndShapes(const std::vector<PromisedTensor>& tensors) {
  std::vector<std::string> names;
  for (const PromisedTensor& tensor : tensors) {
    std::string text = tensor.name;
    for (int64_t dim : tensor.shape) absl::StrAppend(&text, " ", dim);
    names.push_back(text);
  }
  return names;
}

// The published names and shapes, written out: q [nh * d, H] with nh * d != H.
TEST_F(VerifyTensorsTest, PromisesThePublishedNamesOfASoftmaxModel) {
  std::vector<std::string> layer0;
  for (const std::string& name : NamesAndShapes(FrontendTensors(config_))) {
    if (!absl::StrContains(name, "layers.1.")) layer0.push_back(name);
  }
  EXPECT_THAT(layer0,
              UnorderedElementsAre("model.embed_tokens.weight 6 4", "model.norm.weight 4",
                                   "lm_head.weight 6 4", "model.layers.0.input_layernorm.weight 4",
                                   "model.layers.0.post_attention_layernorm.weight 4",
                                   "model.layers.0.self_attn.q_proj.weight 8 4",
                                   "model.layers.0.self_attn.k_proj.weight 4 4",
                                   "model.layers.0.self_attn.v_proj.weight 4 4",
                                   "model.layers.0.self_attn.o_proj.weight 4 8",
                                   "model.layers.0.self_attn.q_norm.weight 2",
                                   "model.layers.0.self_attn.k_norm.weight 2",
                                   "model.layers.0.mlp.gate.weight 2 4"));
  EXPECT_THAT(NamesAndShapes(ExpertTensorsAlone(config_, 1, 0)),
              ElementsAre("model.layers.1.mlp.experts.0.gate_proj.weight 3 4",
                          "model.layers.1.mlp.experts.0.up_proj.weight 3 4",
                          "model.layers.1.mlp.experts.0.down_proj.weight 4 3"));
}

TEST_F(VerifyTensorsTest, PromisesThePublishedNamesOfASigmoidModel) {
  UseConfig(TinyGlm4MoeConfig(kSmallGlm));
  const std::vector<std::string> names = NamesAndShapes(FrontendTensors(config_));
  EXPECT_EQ(names.size(), 3u + 2 * 11 + 3 + 2 + 3);
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias 16", "model.layers.0.self_attn.k_proj.bias 8",
        "model.layers.0.self_attn.v_proj.bias 8", "model.layers.0.mlp.gate_proj.weight 5 4",
        "model.layers.0.mlp.up_proj.weight 5 4", "model.layers.0.mlp.down_proj.weight 4 5",
        "model.layers.1.mlp.gate.weight 2 4", "model.layers.1.mlp.gate.e_score_correction_bias 2",
        "model.layers.1.mlp.shared_experts.gate_proj.weight 6 4",
        "model.layers.1.mlp.shared_experts.up_proj.weight 6 4",
        "model.layers.1.mlp.shared_experts.down_proj.weight 4 6"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
}

TEST_F(VerifyTensorsTest, NamesAPromisedTensorThatNoFileHas) {
  for (const char* name : {"model.layers.1.mlp.gate.weight", "lm_head.weight",
                           "model.layers.0.self_attn.q_norm.weight"}) {
    UseConfig(config_json_);
    tensors_.erase(name);
    const auto checkpoint = Write();
    EXPECT_THAT(VerifyTensors(*checkpoint, Role::kAll), StatusIs(kNotFound, HasSubstr(name)));
    EXPECT_THAT(VerifyTensors(*checkpoint, Role::kFrontend), StatusIs(kNotFound, HasSubstr(name)));
    EXPECT_THAT(VerifyTensors(*checkpoint, Role::kWorker), IsOk());
  }
}

TEST_F(VerifyTensorsTest, LooksForExpertsOnlyWhereTheRoleNeedsThem) {
  const std::string name = "model.layers.1.mlp.experts.1.down_proj.weight";
  tensors_.erase(name);
  const auto checkpoint = Write();
  EXPECT_THAT(VerifyTensors(*checkpoint, Role::kFrontend), IsOk());
  EXPECT_THAT(VerifyTensors(*checkpoint, Role::kWorker), StatusIs(kNotFound, HasSubstr(name)));
  EXPECT_THAT(VerifyTensors(*checkpoint, Role::kAll), StatusIs(kNotFound, HasSubstr(name)));
}

TEST_F(VerifyTensorsTest, NamesAWrongShapeOrDtype) {
  RawTensor& expert = tensors_["model.layers.0.mlp.experts.1.up_proj.weight"];
  std::swap(expert.shape[0], expert.shape[1]);
  EXPECT_THAT(VerifyTensors(*Write(), Role::kWorker),
              StatusIs(kInvalid, AllOf(HasSubstr("experts.1.up_proj"), HasSubstr("[4, 3]"),
                                       HasSubstr("[3, 4]"))));
  UseConfig(config_json_);
  tensors_["model.norm.weight"].dtype = DType::kI16;
  EXPECT_THAT(VerifyTensors(*Write(), Role::kFrontend),
              StatusIs(kInvalid, AllOf(HasSubstr("model.norm.weight"), HasSubstr("I16"))));
}

TEST_F(VerifyTensorsTest, FindsAnExpertsThreeMatrices) {
  const auto checkpoint = Write();
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindExpert(*checkpoint, 1, 1));
  EXPECT_EQ(expert.gate.tensor.name, "model.layers.1.mlp.experts.1.gate_proj.weight");
  EXPECT_EQ(expert.up.tensor.name, "model.layers.1.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(expert.down.tensor.name, "model.layers.1.mlp.experts.1.down_proj.weight");
  EXPECT_THAT(expert.down.tensor.shape, ElementsAre(4, 3));
}

TEST_F(VerifyTensorsTest, RefusesExpertsThatTheModelDoesNotHave) {
  UseConfig(TinyGlm4MoeConfig(kSmallGlm));
  const auto checkpoint = Write();
  for (int layer : {-1, 0, 2}) {
    EXPECT_THAT(FindExpert(*checkpoint, layer, 0),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("layer ", layer))));
  }
  for (int expert : {-1, 2}) {
    EXPECT_THAT(FindExpert(*checkpoint, 1, expert),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("expert ", expert))));
  }
}

class FusedExpertsTest : public VerifyTensorsTest {
 protected:
  FusedExpertsTest() {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      for (int expert = 0; expert < config_.moe.num_experts; ++expert) {
        for (const PromisedTensor& tensor : ExpertTensorsAlone(config_, layer, expert)) {
          tensors_.erase(tensor.name);
        }
      }
      for (const PromisedTensor& tensor : ExpertTensorsFused(config_, layer)) Add(tensor);
    }
  }
};

TEST_F(FusedExpertsTest, CutsAnExpertOutOfItsLayersTensors) {
  const auto checkpoint = Write();
  EXPECT_THAT(VerifyTensors(*checkpoint, Role::kAll), IsOk());
  ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView gate_up,
                               checkpoint->Find("model.layers.1.mlp.experts.gate_up_proj"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView down,
                               checkpoint->Find("model.layers.1.mlp.experts.down_proj"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindExpert(*checkpoint, 1, 1));
  constexpr size_t kBytes = 3 * 4 * 2;  // of one matrix
  EXPECT_EQ(expert.gate.tensor.data.data(), gate_up.data.data() + 2 * kBytes);
  EXPECT_EQ(expert.up.tensor.data.data(), gate_up.data.data() + 3 * kBytes);
  EXPECT_EQ(expert.down.tensor.data.data(), down.data.data() + kBytes);
  EXPECT_EQ(expert.down.tensor.data.size(), kBytes);
  EXPECT_THAT(expert.gate.tensor.shape, ElementsAre(3, 4));
  EXPECT_THAT(expert.down.tensor.shape, ElementsAre(4, 3));
}

TEST_F(FusedExpertsTest, NamesAWrongShapeOrAMissingHalf) {
  tensors_["model.layers.0.mlp.experts.gate_up_proj"].shape = {2, 3, 8};
  EXPECT_THAT(VerifyTensors(*Write(), Role::kWorker),
              StatusIs(kInvalid, AllOf(HasSubstr("gate_up_proj"), HasSubstr("[2, 6, 4]"))));
  tensors_["model.layers.0.mlp.experts.gate_up_proj"].shape = {2, 6, 4};
  tensors_.erase("model.layers.1.mlp.experts.down_proj");
  EXPECT_THAT(VerifyTensors(*Write(), Role::kWorker),
              StatusIs(kNotFound, HasSubstr("model.layers.1.mlp.experts.down_proj")));
}

}  // namespace
}  // namespace atelier
