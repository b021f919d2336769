#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/checkpoint/tensor_names.h"
#include "libs/model/architectures.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::GgufWriter;
using ::atelier::testing::RawTensor;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kHidden = 32, kInner = 32, kExperts = 3, kLayers = 2;
constexpr uint32_t kGgufF32 = 0;

// How a family's files spell one expert's matrix; LAYER, EXPERT and MATRIX are put in.
struct Family {
  const char* model_type;
  const char* matrix;
  const char* parts[3];  // gate, up, down
};

constexpr const char* kUsual[3] = {"gate_proj", "up_proj", "down_proj"};
constexpr char kMlp[] = "model.layers.LAYER.mlp.experts.EXPERT.MATRIX.weight";
constexpr char kSparse[] = "model.layers.LAYER.block_sparse_moe.experts.EXPERT.MATRIX.weight";

const Family kFamilies[] = {
    {"deepseek_v2", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"deepseek_v3", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"deepseek_v32", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"glm4_moe", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"glm_moe_dsa", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"gpt_oss", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"kimi_k2",
     "language_model.model.layers.LAYER.mlp.experts.EXPERT.MATRIX.weight",
     {kUsual[0], kUsual[1], kUsual[2]}},
    {"minimax_m2", kSparse, {"w1", "w3", "w2"}},
    {"mixtral", kSparse, {"w1", "w3", "w2"}},
    {"olmoe", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"qwen2_moe", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"qwen3_5_moe_text",
     "model.language_model.layers.LAYER.mlp.experts.EXPERT.MATRIX.weight",
     {kUsual[0], kUsual[1], kUsual[2]}},
    {"qwen3_moe", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
    {"qwen3_next", kMlp, {kUsual[0], kUsual[1], kUsual[2]}},
};

std::string Config(absl::string_view model_type, absl::string_view more = "") {
  return testing::TinyQwen3MoeConfig(absl::StrCat(R"({"model_type": ")", model_type,
                                                  R"(", "hidden_size": 32, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 6,
      "moe_intermediate_size": 32, "intermediate_size": 32, "num_experts": 3,
      "num_experts_per_tok": 2, "first_k_dense_replace": 0, "mlp_bias": false,
      "norm_topk_prob": null, "shared_expert_intermediate_size": 8)",
                                                  more, "}"));
}

// A matrix of floats that no other expert has.
std::string Matrix(int layer, int expert, int part) {
  std::vector<float> values(size_t{kHidden} * kInner);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((layer * kExperts + expert) * 3 + part) +
                static_cast<float>(i) / 4096.0f;
  }
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<int64_t> ShapeOf(int part) {
  return part == 2 ? std::vector<int64_t>{kHidden, kInner} : std::vector<int64_t>{kInner, kHidden};
}

class FamiliesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpoint> Folder(const Family& family) {
    std::map<std::string, RawTensor> tensors;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int expert = 0; expert < kExperts; ++expert) {
        for (int part = 0; part < 3; ++part) {
          const std::string name =
              absl::StrReplaceAll(family.matrix, {{"LAYER", absl::StrCat(layer)},
                                                  {"EXPERT", absl::StrCat(expert)},
                                                  {"MATRIX", family.parts[part]}});
          tensors[name] = {DType::kF32, ShapeOf(part), Matrix(layer, expert, part)};
        }
      }
    }
    return Write(Config(family.model_type), tensors);
  }

  std::unique_ptr<Checkpoint> Write(const std::string& config,
                                    const std::map<std::string, RawTensor>& tensors) {
    testing::WriteSyntheticCheckpoint(dir_.path(), {.config_json = config});
    testing::WriteSafetensors(dir_.File("model.safetensors"), tensors);
    auto opened = Checkpoint::Open(dir_.path());
    EXPECT_THAT(opened, testing::IsOk());
    return std::move(opened).value();
  }

  std::unique_ptr<Checkpoint> Gguf(const GgufWriter& writer) {
    writer.Write(dir_.File("m.gguf"));
    auto opened = Checkpoint::Open(dir_.File("m.gguf"));
    EXPECT_THAT(opened, testing::IsOk());
    return std::move(opened).value();
  }

  testing::TempDir dir_;
};

// Metadata and experts as converters write them, and a tensor that only such models have.
GgufWriter GgufOfFamily(const Architecture& row) {
  GgufWriter writer;
  const auto key = [&](const char* name) { return absl::StrCat(row.gguf_name, ".", name); };
  writer.Add("general.architecture", row.gguf_name);
  const std::pair<const char*, int> numbers[] = {
      {"block_count", kLayers},
      {"context_length", 64},
      {"embedding_length", kHidden},
      {"feed_forward_length", kInner},
      {"attention.head_count", 2},
      {"expert_count", kExperts},
      {"expert_used_count", 2},
      {"expert_shared_feed_forward_length", 8},
      {"attention.key_length", 4},
      {"attention.value_length", 4},
      {"rope.dimension_count", 4},
      {"expert_gating_func", row.scoring == RouterScoring::kSigmoid ? 2 : 1}};
  for (const auto& [name, value] : numbers) writer.Add(key(name), value);
  if (!row.experts_have_dense_width) writer.Add(key("expert_feed_forward_length"), kInner);
  writer.Add(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  writer.Add(key("rope.freq_base"), 1e4f);
  writer.AddTensor({"token_embd.weight", kGgufF32, {6, kHidden}, std::string(6 * kHidden * 4, 0)});
  if (!row.beyond_frontend.empty()) {
    writer.AddTensor({"blk.0.attn_special.weight", kGgufF32, {4}, std::string(16, 'x')});
  }
  const char* const names[3] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int part = 0; part < 3; ++part) {
      GgufWriter::Tensor tensor{absl::StrCat("blk.", layer, ".", names[part], ".weight"), kGgufF32,
                                ShapeOf(part), ""};
      tensor.shape.insert(tensor.shape.begin(), kExperts);
      for (int expert = 0; expert < kExperts; ++expert) tensor.data += Matrix(layer, expert, part);
      writer.AddTensor(tensor);
      if (!row.expert_bias) continue;
      const std::string bias = std::string(kExperts * kInner * 4, '\0');
      writer.AddTensor({absl::StrCat("blk.", layer, ".", names[part], ".bias"),
                        kGgufF32,
                        {kExperts, part == 2 ? kHidden : kInner},
                        bias});
    }
  }
  return writer;
}

void ExpectExperts(const Checkpoint& checkpoint, absl::string_view model_type) {
  EXPECT_EQ(checkpoint.config().model_type, model_type);
  ATELIER_EXPECT_OK(VerifyTensors(checkpoint, Role::kWorker));
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int expert = 0; expert < kExperts; ++expert) {
      ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors found,
                                   FindExpert(checkpoint, layer, expert));
      const TensorView* parts[3] = {&found.gate.tensor, &found.up.tensor, &found.down.tensor};
      for (int part = 0; part < 3; ++part) {
        EXPECT_EQ(std::string(parts[part]->data.begin(), parts[part]->data.end()),
                  Matrix(layer, expert, part));
      }
    }
  }
}

TEST_F(FamiliesTest, EveryFamilysExpertsAreFoundInBothFormats) {
  for (const Architecture& row : AllArchitectures()) {
    if (!row.has_experts) continue;
    SCOPED_TRACE(std::string(row.model_type));
    const auto family =
        std::find_if(std::begin(kFamilies), std::end(kFamilies),
                     [&](const Family& f) { return f.model_type == row.model_type; });
    ASSERT_NE(family, std::end(kFamilies)) << "the test does not know how its files look";
    ExpectExperts(*Folder(*family), row.model_type);
    if (row.gguf_name.empty()) continue;
    // Kimi's files cannot be told from DeepSeek's.
    ExpectExperts(*Gguf(GgufOfFamily(row)),
                  row.model_type == "kimi_k2" ? "deepseek_v3" : row.model_type);
  }
}

TEST_F(FamiliesTest, TheFrontendRefusesWhatItCannotComputeByName) {
  for (const Architecture& row : AllArchitectures()) {
    if (row.beyond_frontend.empty()) continue;
    SCOPED_TRACE(std::string(row.model_type));
    const auto refuses =
        StatusIs(absl::StatusCode::kUnimplemented,
                 AllOf(HasSubstr("model_type="), HasSubstr(std::string(row.beyond_frontend))));
    const auto family =
        std::find_if(std::begin(kFamilies), std::end(kFamilies),
                     [&](const Family& f) { return f.model_type == row.model_type; });
    EXPECT_THAT(VerifyTensors(*Folder(*family), Role::kFrontend), refuses);
    if (row.gguf_name.empty()) continue;
    const auto gguf = Gguf(GgufOfFamily(row));
    EXPECT_THAT(VerifyTensors(*gguf, Role::kFrontend), refuses);
    EXPECT_THAT(VerifyTensors(*gguf, Role::kFrontend),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("\"blk.0.attn_special")));
  }
}

RawTensor Floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {DType::kF32,
          std::move(shape),
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
}

std::vector<float> Counting(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

// As gpt-oss publishes them: blocks and scales of all experts, and biases beside them.
std::map<std::string, RawTensor> MxFp4Layer(const std::string& prefix) {
  const auto bytes = [](std::vector<int64_t> shape, size_t count) {
    return RawTensor{DType::kU8, std::move(shape), std::string(count, '\x11')};
  };
  return {
      {prefix + "gate_up_proj_blocks", bytes({kExperts, 2 * kInner, 1, 16}, 3 * 64 * 16)},
      {prefix + "gate_up_proj_scales", bytes({kExperts, 2 * kInner, 1}, 3 * 64)},
      {prefix + "down_proj_blocks", bytes({kExperts, kHidden, 1, 16}, 3 * 32 * 16)},
      {prefix + "down_proj_scales", bytes({kExperts, kHidden, 1}, 3 * 32)},
      {prefix + "gate_up_proj_bias",
       Floats({kExperts, 2 * kInner}, Counting(kExperts * 2 * kInner, 0))},
      {prefix + "down_proj_bias", Floats({kExperts, kHidden}, Counting(kExperts * kHidden, 1000))}};
}

TEST_F(FamiliesTest, BlocksOfGptOssHaveBiasesOfWhichGatesAndUpsAlternate) {
  std::map<std::string, RawTensor> tensors = MxFp4Layer("model.layers.0.mlp.experts.");
  tensors.merge(MxFp4Layer("model.layers.1.mlp.experts."));
  const auto checkpoint = Write(Config("gpt_oss", R"(, "mlp_bias": null,
      "quantization_config": {"quant_method": "mxfp4"})"),
                                tensors);
  ATELIER_EXPECT_OK(VerifyTensors(*checkpoint, Role::kWorker));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertBiases biases, FindExpertBiases(*checkpoint, 1, 2));
  ASSERT_EQ(biases.gate.size(), size_t{kInner});
  for (size_t i = 0; i < size_t{kInner}; ++i) {
    EXPECT_EQ(biases.gate[i], 128.0f + 2.0f * static_cast<float>(i));
    EXPECT_EQ(biases.up[i], 129.0f + 2.0f * static_cast<float>(i));
  }
  EXPECT_EQ(biases.down[31], 1000.0f + 2 * 32 + 31);
}

TEST_F(FamiliesTest, GgufKeepsBiasesOfGateAndUpApart) {
  GgufWriter writer = GgufOfFamily(*FindArchitecture("gpt_oss"));
  for (GgufWriter::Tensor& tensor : writer.tensors) {
    if (!absl::EndsWith(tensor.name, ".bias")) continue;
    const float first = absl::StrContains(tensor.name, "_up_") ? 500.0f : 0.0f;
    tensor.data = Floats({}, Counting(kExperts * kInner, first)).data;
  }
  const auto checkpoint = Gguf(writer);
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertBiases biases, FindExpertBiases(*checkpoint, 1, 2));
  EXPECT_EQ(biases.gate[1], 65.0f);
  EXPECT_EQ(biases.up[1], 565.0f);
  EXPECT_EQ(biases.down[1], 65.0f);
  EXPECT_EQ(checkpoint->config().moe.activation, (Activation{1.702f, 7.0f, false, 1.0f}));
}

TEST_F(FamiliesTest, RefusesGptOssWithFloatsAndWithoutBiases) {
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto zeros = [](std::vector<int64_t> shape, size_t count) {
    return Floats(std::move(shape), std::vector<float>(count));
  };
  const auto floats =
      Write(Config("gpt_oss"),
            {{prefix + "gate_up_proj", zeros({kExperts, kHidden, 2 * kInner}, 3 * 32 * 64)},
             {prefix + "down_proj", zeros({kExperts, kInner, kHidden}, 3 * 32 * 32)}});
  EXPECT_THAT(VerifyTensors(*floats, Role::kWorker),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("gate and up alternating"), HasSubstr("MXFP4"))));
  std::map<std::string, RawTensor> tensors = MxFp4Layer(prefix);
  tensors.erase(prefix + "gate_up_proj_bias");
  const auto lacking = Write(Config("gpt_oss", R"(, "mlp_bias": null,
      "quantization_config": {"quant_method": "mxfp4"})"),
                             tensors);
  EXPECT_THAT(VerifyTensors(*lacking, Role::kWorker),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("gate_up_proj_bias")));
}

TEST_F(FamiliesTest, ATensorUnderTwoSpellingsIsRefused) {
  testing::WriteSyntheticCheckpoint(dir_.path(), {.config_json = Config("mixtral")});
  const RawTensor matrix{DType::kF32, ShapeOf(0), Matrix(0, 0, 0)};
  testing::WriteSafetensors(dir_.File("model.safetensors"),
                            {{"model.layers.0.mlp.experts.0.gate_proj.weight", matrix},
                             {"model.layers.0.block_sparse_moe.experts.0.w1.weight", matrix}});
  EXPECT_THAT(Checkpoint::Open(dir_.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("experts.0.gate_proj")));
}

TEST(CanonicalName, KnowsTheSpellingsOfOtherFamilies) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"},
      {"model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight"},
      {"model.layers.0.block_sparse_moe.e_score_correction_bias",
       "model.layers.0.mlp.gate.e_score_correction_bias"},
      {"model.layers.7.block_sparse_moe.experts.12.w3.weight_scale_inv",
       "model.layers.7.mlp.experts.12.up_proj.weight_scale_inv"},
      {"model.layers.0.mlp.shared_expert.up_proj.weight",
       "model.layers.0.mlp.shared_experts.up_proj.weight"},
      {"model.layers.0.mlp.shared_expert_gate.weight",
       "model.layers.0.mlp.shared_expert_gate.weight"},
      {"model.layers.0.mlp.router.weight", "model.layers.0.mlp.gate.weight"},
      {"model.language_model.layers.3.mlp.experts.gate_up_proj",
       "model.layers.3.mlp.experts.gate_up_proj"},
      {"language_model.model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"model.layers.0.mlp.experts.0.w1x.weight", "model.layers.0.mlp.experts.0.w1x.weight"},
      {"model.layers.0.mlp.experts.w1", "model.layers.0.mlp.experts.w1"},
      {"model.visual.blocks.0.w1.weight", "model.visual.blocks.0.w1.weight"},
      {"", ""},
  };
  for (const auto& [published, canonical] : cases) {
    EXPECT_EQ(CanonicalName(published), canonical);
  }
}

}  // namespace
}  // namespace atelier
