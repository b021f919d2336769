#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/checkpoint/tensor_floats.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::GgufOf;
using ::atelier::testing::GgufWriter;
using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Rows of gate and up are blocks of 256, those of down blocks of 32.
constexpr char kSmall[] = R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 48, "intermediate_size": 64,
    "moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2})";
constexpr char kSmallGlm[] =
    R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 48, "intermediate_size": 64,
    "moe_intermediate_size": 32, "n_routed_experts": 3, "num_experts_per_tok": 2,
    "n_shared_experts": 2})";

std::string AllBf16(absl::string_view) { return "BF16"; }

class GgufCheckpointTest : public ::testing::Test {
 protected:
  GgufCheckpointTest() { Make(testing::TinyQwen3MoeConfig(kSmall)); }

  void Make(const std::string& config_json,
            const std::function<std::string(absl::string_view)>& type_of = AllBf16) {
    testing::WriteSyntheticCheckpoint(dir_.File("hf"), {.config_json = config_json});
    source_ = Checkpoint::Open(dir_.File("hf")).value();
    writer_ = GgufOf(*source_, type_of);
  }
  std::string path() { return dir_.File("m.gguf"); }
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() {
    writer_.Write(path());
    return Checkpoint::Open(path());
  }
  GgufWriter::Tensor& Tensor(const std::string& name) {
    for (GgufWriter::Tensor& tensor : writer_.tensors) {
      if (tensor.name == name) return tensor;
    }
    ATELIER_CHECK(false);
  }
  void ExpectRefused(absl::StatusCode code, const std::vector<std::string>& parts) {
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
  }

  TempDir dir_;
  std::unique_ptr<Checkpoint> source_;
  GgufWriter writer_;
};

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values(NumElements(tensor));
  ReadFloats(tensor, 0, values.size(), values.data());
  return values;
}

// Everything that a Hugging Face folder of the same model says, under the same names.
void ExpectSameModel(const Checkpoint& gguf, const Checkpoint& folder) {
  const ModelConfig &a = gguf.config(), &b = folder.config();
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.dense_intermediate_size,
            b.num_moe_layers() < b.num_layers ? b.dense_intermediate_size : 0);
  EXPECT_EQ(static_cast<float>(a.rms_norm_eps), static_cast<float>(b.rms_norm_eps));
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.attention.num_heads, b.attention.num_heads);
  EXPECT_EQ(a.attention.num_kv_heads, b.attention.num_kv_heads);
  EXPECT_EQ(a.attention.head_dim, b.attention.head_dim);
  EXPECT_EQ(a.attention.rotary_dim, b.attention.rotary_dim);
  EXPECT_EQ(a.attention.rope_theta, b.attention.rope_theta);
  EXPECT_EQ(a.attention.qk_norm, b.attention.qk_norm);
  EXPECT_EQ(a.attention.qkv_bias, b.attention.qkv_bias);
  EXPECT_EQ(a.attention.output_bias, b.attention.output_bias);
  EXPECT_EQ(a.moe.num_experts, b.moe.num_experts);
  EXPECT_EQ(a.moe.top_k, b.moe.top_k);
  EXPECT_EQ(a.moe.intermediate_size, b.moe.intermediate_size);
  EXPECT_EQ(a.moe.scoring, b.moe.scoring);
  EXPECT_EQ(a.moe.normalize_weights, b.moe.normalize_weights);
  EXPECT_EQ(a.moe.normalize_epsilon, b.moe.normalize_epsilon);
  EXPECT_EQ(a.moe.routed_scaling_factor, b.moe.routed_scaling_factor);
  EXPECT_EQ(a.moe.correction_bias, b.moe.correction_bias);
  EXPECT_EQ(a.moe.shared_intermediate_size, b.moe.shared_intermediate_size);
  EXPECT_EQ(a.is_moe_layer, b.is_moe_layer);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.pad_token_id, b.pad_token_id);
  ATELIER_EXPECT_OK(VerifyTensors(gguf, Role::kAll));
  for (const std::string& name : folder.TensorNames()) {
    if (absl::StrContains(name, ".experts.")) continue;
    ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView tensor, gguf.Find(name));
    EXPECT_EQ(Floats(tensor), Floats(*folder.Find(name))) << name;
  }
  for (int layer = 0; layer < a.num_layers; ++layer) {
    if (!a.is_moe_layer[static_cast<size_t>(layer)]) continue;
    for (int expert = 0; expert < a.moe.num_experts; ++expert) {
      const ExpertTensors of_gguf = *FindExpert(gguf, layer, expert);
      const ExpertTensors of_folder = *FindExpert(folder, layer, expert);
      EXPECT_EQ(Floats(of_gguf.gate.tensor), Floats(of_folder.gate.tensor));
      EXPECT_EQ(Floats(of_gguf.up.tensor), Floats(of_folder.up.tensor));
      EXPECT_EQ(Floats(of_gguf.down.tensor), Floats(of_folder.down.tensor));
    }
  }
}

TEST_F(GgufCheckpointTest, IsTheModelOfTheFolder) {
  for (const std::string& config :
       {testing::TinyQwen3MoeConfig(kSmall),
        testing::TinyQwen3MoeConfig(R"({"tie_word_embeddings": true, "norm_topk_prob": false})"),
        testing::TinyGlm4MoeConfig(kSmallGlm),
        testing::TinyGlm4MoeConfig(R"({"use_qk_norm": false, "attention_bias": false})")}) {
    SCOPED_TRACE(config);
    Make(config);
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
    ExpectSameModel(*gguf, *source_);
  }
}

TEST_F(GgufCheckpointTest, IsTheSameInParts) {
  writer_.WriteSplit(dir_.File("m"), 4);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf,
                               Checkpoint::Open(dir_.File("m-00001-of-00004.gguf")));
  ExpectSameModel(*gguf, *source_);
}

// Each matrix of its own type, and the experts in one tensor for gate and up.
TEST_F(GgufCheckpointTest, CutsExpertsOutOfBlocks) {
  Make(testing::TinyQwen3MoeConfig(kSmall), [](absl::string_view name) -> std::string {
    if (absl::StrContains(name, "down_exps")) return "Q5_0";
    if (absl::StrContains(name, "gate_exps")) return "Q4_K";
    return absl::StrContains(name, "up_exps") ? "Q6_K" : "BF16";
  });
  const GgufWriter::Tensor whole = Tensor("blk.1.ffn_gate_exps.weight");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertTensors expert, FindExpert(*gguf, 1, 2));
  EXPECT_EQ(expert.gate.quant->method, Method::kQ4_K);
  EXPECT_EQ(expert.up.quant->method, Method::kQ6_K);
  EXPECT_EQ(expert.down.quant->method, Method::kQ5_0);
  const size_t bytes = whole.data.size() / 3;
  EXPECT_EQ(std::string(expert.gate.tensor.data.begin(), expert.gate.tensor.data.end()),
            whole.data.substr(2 * bytes));
  const auto down = Floats(expert.down.tensor);
  QuantBlock block;
  expert.down.quant->source->Read(200, 0, 32, block);
  EXPECT_EQ(Float16ToFloat(block.half_scales[0]) * static_cast<float>(block.codes[5] - 16),
            down[200 * 32 + 5]);
}

TEST_F(GgufCheckpointTest, TakesGateAndUpTogether) {
  Make(testing::TinyQwen3MoeConfig(kSmall),
       [](absl::string_view name) { return absl::StrContains(name, "_exps") ? "Q8_0" : "BF16"; });
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto apart, Open());
  const ExpertTensors expert = *FindExpert(*apart, 0, 1);
  const std::vector<float> gate = Floats(expert.gate.tensor), up = Floats(expert.up.tensor);
  const std::vector<float> down = Floats(expert.down.tensor);
  std::vector<GgufWriter::Tensor> tensors;
  for (const GgufWriter::Tensor& tensor : writer_.tensors) {
    if (absl::StrContains(tensor.name, "ffn_up_exps")) continue;
    tensors.push_back(tensor);
    if (!absl::StrContains(tensor.name, "ffn_gate_exps")) continue;
    const size_t bytes = tensor.data.size() / 3;
    GgufWriter::Tensor& both = tensors.back();
    const GgufWriter::Tensor& other =
        Tensor(absl::StrCat(tensor.name.substr(0, 6), "ffn_up_exps.weight"));
    both.name = absl::StrCat(tensor.name.substr(0, 6), "ffn_gate_up_exps.weight");
    both.shape[1] *= 2;
    both.data.clear();
    for (size_t expert = 0; expert < 3; ++expert) {
      both.data += tensor.data.substr(expert * bytes, bytes);
      both.data += other.data.substr(expert * bytes, bytes);
    }
  }
  writer_.tensors = tensors;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto together, Open());
  const ExpertTensors after = *FindExpert(*together, 0, 1);
  EXPECT_EQ(Floats(after.gate.tensor), gate);
  EXPECT_EQ(Floats(after.up.tensor), up);
  EXPECT_EQ(Floats(after.down.tensor), down);
}

TEST_F(GgufCheckpointTest, TakesExpertsInTensorsOfTheirOwn) {
  std::vector<GgufWriter::Tensor> tensors;
  for (const GgufWriter::Tensor& tensor : writer_.tensors) {
    const size_t at = tensor.name.find("_exps");
    if (at == std::string::npos) {
      tensors.push_back(tensor);
      continue;
    }
    const size_t bytes = tensor.data.size() / 3;
    for (size_t expert = 0; expert < 3; ++expert) {
      tensors.push_back({absl::StrCat(tensor.name.substr(0, at), ".", expert, ".weight"),
                         tensor.type,
                         {tensor.shape[1], tensor.shape[2]},
                         tensor.data.substr(expert * bytes, bytes)});
    }
  }
  writer_.tensors = tensors;
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
  ExpectSameModel(*gguf, *source_);
}

TEST_F(GgufCheckpointTest, SkipsLayersThatPredictFurtherTokens) {
  Make(testing::TinyGlm4MoeConfig(kSmallGlm));
  writer_.Add("glm4moe.nextn_predict_layers", 1);
  writer_.AddTensor({"blk.1.nextn.eh_proj.weight", 0, {4}, std::string(16, '\0')});
  // Of two blocks one is left, the dense one; the other is skipped whatever it holds.
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
  EXPECT_EQ(gguf->config().num_layers, 1);
  EXPECT_FALSE(gguf->Find("model.layers.1.input_layernorm.weight").ok());
  ATELIER_EXPECT_OK(VerifyTensors(*gguf, Role::kFrontend));
}

TEST_F(GgufCheckpointTest, HasADigestOfItsContents) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto one, Open());
  std::filesystem::copy_file(path(), dir_.File("copy.gguf"));
  EXPECT_EQ(Checkpoint::Open(dir_.File("copy.gguf")).value()->digest(), one->digest());
  EXPECT_NE(source_->digest(), one->digest());
  writer_.tensors.back().data.back() ^= 1;
  EXPECT_NE(Open().value()->digest(), one->digest());
  writer_.tensors.back().data.back() ^= 1;
  writer_.Add("more", 1);
  EXPECT_NE(Open().value()->digest(), one->digest());
}

TEST_F(GgufCheckpointTest, RefusesOtherModelsByName) {
  for (const char* arch : {"", "deepseek4", "dbrx", "qwen3"}) {
    GgufWriter writer;
    writer.Add("general.architecture", arch);
    writer.Write(path());
    EXPECT_THAT(Checkpoint::Open(path()).status(),
                StatusIs(kUnimplemented, AllOf(HasSubstr("m.gguf"), HasSubstr(arch),
                                               HasSubstr("qwen35moe, qwen3moe, qwen3next"))));
  }
}

TEST_F(GgufCheckpointTest, RefusesMetadataThatItCannotHonour) {
  const auto refuses = [&](const std::function<void(GgufWriter&)>& change, absl::StatusCode code,
                           const std::string& part) {
    Make(testing::TinyQwen3MoeConfig(kSmall));
    change(writer_);
    ExpectRefused(code, {"m.gguf", part});
  };
  refuses([](auto& w) { w.Add("qwen3moe.hidden_activation", "gelu"); }, kUnimplemented,
          "qwen3moe.hidden_activation=\"gelu\"");
  refuses([](auto& w) { w.Add("qwen3moe.swiglu_clamp_exp", 7.0f); }, kUnimplemented,
          "swiglu_clamp_exp");
  refuses([](auto& w) { w.Add("tokenizer.ggml.eot_token_id", "two"); }, kInvalid,
          "eot_token_id=\"two\"");
  refuses([](auto& w) { w.Add("qwen3moe.nextn_predict_layers", 2); }, kInvalid, "leaves none");
  refuses(
      [](auto& w) {
        w.AddTensor({"blk.7.attn_norm.weight", 0, {4}, std::string(16, 'x')});
      },
      kInvalid, "\"blk.7.attn_norm.weight\" is of a layer that qwen3moe.block_count=");
  refuses(
      [](auto& w) {
        w.AddTensor({"blk.0.ffn_gate_exps.scale", 0, {4}, std::string(16, 'x')});
      },
      kUnimplemented, "\"blk.0.ffn_gate_exps.scale\" has no part");
}

// What changes no expert leaves the workers able to serve them.
TEST_F(GgufCheckpointTest, TheFrontendRefusesMetadataThatItCannotHonour) {
  const auto refuses = [&](const std::function<void(GgufWriter&)>& change,
                           const std::string& part) {
    Make(testing::TinyQwen3MoeConfig(kSmall));
    change(writer_);
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
    ATELIER_EXPECT_OK(VerifyTensors(*gguf, Role::kWorker));
    EXPECT_THAT(VerifyTensors(*gguf, Role::kFrontend),
                StatusIs(kUnimplemented, AllOf(HasSubstr("model_type=qwen3_moe"),
                                               HasSubstr(part + "; expert workers"))));
  };
  refuses([](auto& w) { w.Add("qwen3moe.rope.scaling.type", "yarn"); },
          "qwen3moe.rope.scaling.type=\"yarn\"");
  refuses([](auto& w) { w.Add("qwen3moe.rope.scaling.factor", 4.0f); }, "rope.scaling.factor=4");
  refuses([](auto& w) { w.Add("qwen3moe.rope.scale_linear", 2.0f); }, "rope.scale_linear=2");
  refuses([](auto& w) { w.Add("qwen3moe.attention.sliding_window", 128); }, "sliding_window=128");
  refuses([](auto& w) { w.Add("qwen3moe.attention.kv_lora_rank", 512); }, "kv_lora_rank=512");
  refuses([](auto& w) { w.Add("qwen3moe.expert_gating_func", 3); }, "expert_gating_func=3");
  refuses([](auto& w) { w.Add("qwen3moe.expert_group_count", 3); },
          "expert_group_count=3 with softmax scores");
  refuses(
      [](auto& w) {
        w.Add("qwen3moe.rope.dimension_sections", std::vector<int32_t>{1, 1});
      },
      "rope.dimension_sections=(array of 2)");
  for (const char* name : {"blk.0.attn_sinks.weight", "rope_freqs.weight"}) {
    refuses(
        [&](auto& w) {
          w.AddTensor({name, 0, {4}, std::string(16, 'x')});
        },
        absl::StrCat("tensor \"", name, "\""));
  }
}

TEST_F(GgufCheckpointTest, NamesAMissingKey) {
  GgufWriter writer;
  writer.Add("general.architecture", "qwen3moe");
  writer.Add("qwen3moe.block_count", 2);
  writer.Write(path());
  EXPECT_THAT(Checkpoint::Open(path()).status(),
              StatusIs(kInvalid, HasSubstr("lack the required key qwen3moe.")));
}

TEST_F(GgufCheckpointTest, RefusesWhatTheMetadataDoNotPromise) {
  Tensor("blk.0.attn_q.weight").shape = {32, 512};
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
  EXPECT_THAT(VerifyTensors(*gguf, Role::kFrontend),
              StatusIs(kInvalid, AllOf(HasSubstr("self_attn.q_proj"), HasSubstr("[32, 512]"),
                                       HasSubstr("the metadata promises [64, 256]"))));
}

TEST_F(GgufCheckpointTest, RefusesTypesThatItCannotComputeByName) {
  Make(testing::TinyQwen3MoeConfig(kSmall), [](absl::string_view name) {
    return name == "blk.1.ffn_up_exps.weight" || name == "token_embd.weight" ? "IQ2_XXS" : "BF16";
  });
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto gguf, Open());
  for (const Role role : {Role::kFrontend, Role::kWorker}) {
    EXPECT_THAT(VerifyTensors(*gguf, role),
                StatusIs(kUnimplemented,
                         AllOf(HasSubstr("m.gguf"), HasSubstr("IQ2_XXS"), HasSubstr("Q4_K"),
                               HasSubstr(role == Role::kWorker ? "layers.1.mlp.experts.up_proj"
                                                               : "embed_tokens"))));
  }
}

TEST_F(GgufCheckpointTest, AFolderPointsToItsFile) {
  std::filesystem::create_directory(dir_.File("only"));
  writer_.Write(dir_.File("only/m.gguf"));
  EXPECT_THAT(Checkpoint::Open(dir_.File("only")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("only/m.gguf")));
}

}  // namespace
}  // namespace atelier
