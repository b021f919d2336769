#include "libs/model/model_config.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::atelier::testing::TinyGlm4MoeConfig;
using ::atelier::testing::TinyQwen3MoeConfig;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// The keys and values of Qwen3-235B-A22B as published (torch_dtype and rope_theta spelling).
constexpr char kQwen235B[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true,
  "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94,
  "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// GLM-4.5 in the newer spelling (dtype, rope_parameters).
constexpr char kGlm45[] = R"({
  "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "dtype": "bfloat16",
  "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 3, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 12288,
  "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1536,
  "n_group": 1, "n_routed_experts": 160, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 92,
  "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "pad_token_id": 151329,
  "rms_norm_eps": 1e-05, "routed_scaling_factor": 2.5, "topk_group": 1, "use_qk_norm": true,
  "rope_parameters": {"rope_type": "default", "rope_theta": 1000000, "partial_rotary_factor": 0.5},
  "vocab_size": 151552})";

TEST(ParseModelConfig, ReadsASoftmaxModelAsPublished) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(kQwen235B));
  EXPECT_EQ(config.model_type, "qwen3_moe");
  EXPECT_THAT(config.architectures, ElementsAre("Qwen3MoeForCausalLM"));
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.num_layers, 94);
  EXPECT_EQ(config.num_moe_layers(), 94);
  EXPECT_EQ(config.dense_intermediate_size, 0);  // no layer uses it
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.attention.num_heads, 64);
  EXPECT_EQ(config.attention.num_kv_heads, 4);
  EXPECT_EQ(config.attention.rotary_dim, 128);
  EXPECT_EQ(config.attention.rope_theta, 1e6);
  EXPECT_EQ(config.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(config.attention.qkv_bias);
  EXPECT_EQ(config.moe.scoring, RouterScoring::kSoftmax);
  EXPECT_EQ(config.moe.num_experts, 128);
  EXPECT_EQ(config.moe.intermediate_size, 1536);
  EXPECT_TRUE(config.moe.normalize_weights);
  EXPECT_EQ(config.moe.normalize_epsilon, 0.0);
  EXPECT_FALSE(config.moe.correction_bias);
  EXPECT_EQ(config.moe.shared_intermediate_size, 0);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(151645));
  EXPECT_EQ(config.bos_token_id, 151643);
  EXPECT_EQ(config.pad_token_id, -1);
}

TEST(ParseModelConfig, ReadsASigmoidModelAsPublished) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(kGlm45));
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.num_layers, 92);
  EXPECT_EQ(config.num_moe_layers(), 89);
  EXPECT_FALSE(config.is_moe_layer[2]);
  EXPECT_TRUE(config.is_moe_layer[3]);
  EXPECT_EQ(config.dense_intermediate_size, 12288);
  EXPECT_EQ(config.attention.rotary_dim, 64);
  EXPECT_EQ(config.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(config.attention.qkv_bias);
  EXPECT_FALSE(config.attention.output_bias);
  EXPECT_EQ(config.moe.scoring, RouterScoring::kSigmoid);
  EXPECT_TRUE(config.moe.correction_bias);
  EXPECT_EQ(config.moe.normalize_epsilon, 1e-20);
  EXPECT_EQ(config.moe.routed_scaling_factor, 2.5);
  EXPECT_EQ(config.moe.shared_intermediate_size, 1536);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(151329, 151336, 151338));
}

TEST(ParseModelConfig, FallsBackToWhatTheModelTypeImplies) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ModelConfig qwen,
      ParseModelConfig(TinyQwen3MoeConfig(R"({"norm_topk_prob": null, "head_dim": null,
          "decoder_sparse_step": null, "num_key_value_heads": null, "eos_token_id": null})")));
  EXPECT_FALSE(qwen.moe.normalize_weights);
  EXPECT_EQ(qwen.attention.head_dim, 256 / 8);
  EXPECT_EQ(qwen.attention.num_kv_heads, 8);
  EXPECT_THAT(qwen.eos_token_ids, ElementsAre());
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ModelConfig glm,
      ParseModelConfig(TinyGlm4MoeConfig(R"({"norm_topk_prob": null, "use_qk_norm": null,
          "partial_rotary_factor": null, "first_k_dense_replace": null})")));
  EXPECT_TRUE(glm.moe.normalize_weights);
  EXPECT_EQ(glm.attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(glm.attention.rotary_dim, 32);
  EXPECT_THAT(glm.is_moe_layer, ElementsAre(false, true, true, true));
}

TEST(ParseModelConfig, AcceptsEverySpellingOfTheNumberOfExperts) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const std::string patch = std::string(R"({"num_experts": null, ")") + key + R"(": 6})";
    ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                                 ParseModelConfig(TinyQwen3MoeConfig(patch)));
    EXPECT_EQ(config.moe.num_experts, 6) << key;
  }
}

TEST(ParseModelConfig, LetsABiasCoverTheOutputOnlyWhereTheModelTypeSaysSo) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                               ParseModelConfig(TinyQwen3MoeConfig(R"({"attention_bias": true})")));
  EXPECT_TRUE(config.attention.qkv_bias);
  EXPECT_TRUE(config.attention.output_bias);
}

TEST(ParseModelConfig, CombinesTheRulesForLayersWithExperts) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig listed,
                               ParseModelConfig(TinyQwen3MoeConfig(R"({"mlp_only_layers": [1]})")));
  EXPECT_THAT(listed.is_moe_layer, ElementsAre(true, false, true, true));
  EXPECT_EQ(listed.dense_intermediate_size, 512);
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig stepped,
                               ParseModelConfig(TinyQwen3MoeConfig(
                                   R"({"decoder_sparse_step": 2, "mlp_only_layers": [3]})")));
  EXPECT_THAT(stepped.is_moe_layer, ElementsAre(false, true, false, false));
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ModelConfig typed,
      ParseModelConfig(
          TinyGlm4MoeConfig(R"({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]})")));
  EXPECT_THAT(typed.is_moe_layer, ElementsAre(true, false, true, false));
}

struct BadConfig {
  const char* patch;
  absl::StatusCode code;
  const char* message;
};

void ExpectRefused(const std::string& text, const BadConfig& bad) {
  EXPECT_THAT(ParseModelConfig(text), StatusIs(bad.code, HasSubstr(bad.message))) << bad.patch;
}

TEST(ParseModelConfig, NamesWhatItCannotCompute) {
  const BadConfig cases[] = {
      {R"({"model_type": "deepseek_v4"})", kUnimplemented, "model_type=deepseek_v4"},
      {R"({"model_type": "deepseek_v4"})", kUnimplemented, "qwen3_moe, qwen3_next"},
      {R"({"quantization_config": {"quant_method": "aqlm"}})", kUnimplemented, "quant_method=aqlm"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}})",
       kUnimplemented, "bits=8"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 16}})",
       kUnimplemented, "group_size=16"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
          "desc_act": true}})",
       kUnimplemented, "desc_act=true"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
          "checkpoint_format": "marlin"}})",
       kUnimplemented, "checkpoint_format=marlin"},
      {R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128,
          "version": "GEMV"}})",
       kUnimplemented, "version=gemv"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "int-quantized"}})",
       kUnimplemented, "format=int-quantized"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4,
          "strategy": "group", "group_size": 128, "actorder": "group"}}}}})",
       kUnimplemented, "actorder=group"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {"a": {"weights": {"num_bits": 4,
          "group_size": 128}}, "b": {"weights": {"num_bits": 4, "group_size": 32}}}}})",
       kUnimplemented, "config_groups=(several)"},
      {R"({"quantization_config": {}})", kUnimplemented, "quant_method"},
      {R"({"hidden_act": "gelu"})", kUnimplemented, "hidden_act=gelu"},
      {R"({"hidden_act": "relu2", "swiglu_limit": 7.0})", kUnimplemented, "swigluoai"},
      {R"({"mlp_layer_types": ["sparse", "sparse", "hybrid", "dense"]})", kUnimplemented, "hybrid"},
  };
  for (const BadConfig& bad : cases) ExpectRefused(TinyQwen3MoeConfig(bad.patch), bad);
  EXPECT_THAT(
      ParseModelConfig(TinyQwen3MoeConfig(
          R"({"use_sliding_window": false, "sliding_window": 4096, "hidden_act": "swish"})")),
      testing::IsOk());
}

TEST(ParseModelConfig, ReadsTheActivationByItsProperties) {
  const auto activation = [](const char* patch) {
    const absl::StatusOr<ModelConfig> config = ParseModelConfig(TinyQwen3MoeConfig(patch));
    EXPECT_THAT(config, testing::IsOk()) << patch;
    return config.ok() ? config->moe.activation : Activation{-1.0f, 1.0f, false, 0.0f};
  };
  EXPECT_TRUE(activation("{}").IsSwiGlu());
  EXPECT_TRUE(activation(R"({"swiglu_limit": null})").IsSwiGlu());
  EXPECT_EQ(activation(R"({"swiglu_limit": 10.0})"), (Activation{1.0f, 10.0f, false, 0.0f}));
  EXPECT_EQ(activation(R"({"hidden_act": "swigluoai"})"), (Activation{1.702f, 7.0f, false, 1.0f}));
  EXPECT_EQ(activation(R"({"hidden_act": "swigluoai", "swiglu_alpha": 1.5, "swiglu_limit": 9})"),
            (Activation{1.5f, 9.0f, false, 1.0f}));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                               ParseModelConfig(TinyQwen3MoeConfig(R"({"mlp_bias": true})")));
  EXPECT_TRUE(config.moe.expert_bias);
}

// What changes no expert leaves the workers able to serve them.
TEST(ParseModelConfig, SaysWhatTheFrontendCannotCompute) {
  const auto expect = [](const std::string& text, const std::string& named) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(text));
    EXPECT_THAT(config.CheckFrontend(),
                StatusIs(kUnimplemented, AllOf(HasSubstr("model_type=" + config.model_type),
                                               HasSubstr(named), HasSubstr("workers can serve"))));
  };
  const std::pair<const char*, const char*> of_softmax[] = {
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})", "rope_scaling.rope_type=yarn"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.rope_type=linear"},
      {R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}})",
       "rope_parameters.rope_type=llama3"},
      {R"({"use_sliding_window": true, "sliding_window": 4096})", "sliding_window=4096"},
      {R"({"use_sliding_window": null, "sliding_window": 4096})", "sliding_window=4096"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})",
       "layer_types=sliding_attention"},
      {R"({"attn_type_list": [1, 0, 1, 0]})", "attn_type_list=0;"},
      {R"({"clip_qkv": 8.0})", "clip_qkv"},
      {R"({"kv_lora_rank": 512, "num_attention_heads": null})", "kv_lora_rank=512"},
      {R"({"scoring_func": "sigmoid"})", "scoring_func=sigmoid"},
      {R"({"topk_method": "group_limited_greedy"})", "topk_method=group_limited_greedy"},
      {R"({"n_group": 2, "topk_group": 1})", "n_group=2 with softmax"},
      {R"({"swiglu_limit": 7, "mlp_only_layers": [0]})", "dense layers"},
      {R"({"model_type": "llama", "mlp_bias": true})", "mlp_bias"},
  };
  for (const auto& [patch, named] : of_softmax) expect(TinyQwen3MoeConfig(patch), named);
  for (const char* patch : {R"({"swiglu_limit": 7, "first_k_dense_replace": 0})",
                            R"({"hidden_act": "swigluoai", "first_k_dense_replace": 0})",
                            R"({"mlp_bias": true, "first_k_dense_replace": 0})"}) {
    expect(TinyGlm4MoeConfig(patch), "shared experts");
  }
  ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig whole, ParseModelConfig(TinyQwen3MoeConfig()));
  ATELIER_EXPECT_OK(whole.CheckFrontend());
}

TEST(ParseModelConfig, NamesAMissingKey) {
  for (const char* key :
       {"model_type", "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings",
        "rms_norm_eps", "num_attention_heads", "rope_theta", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size"}) {
    const std::string patch = std::string("{\"") + key + "\": null}";
    EXPECT_THAT(ParseModelConfig(TinyQwen3MoeConfig(patch)),
                StatusIs(kInvalid, AllOf(HasSubstr(key), HasSubstr("missing"))));
  }
  EXPECT_THAT(ParseModelConfig(TinyGlm4MoeConfig(R"({"intermediate_size": null})")),
              StatusIs(kInvalid, HasSubstr("intermediate_size")));
}

TEST(ParseModelConfig, NamesAWrongTypeAndItsValue) {
  const BadConfig cases[] = {
      {R"({"hidden_size": "256"})", kInvalid, "hidden_size=\"256\" must be an integer"},
      {R"({"hidden_size": 256.0})", kInvalid, "hidden_size=256.0 must be an integer"},
      {R"({"hidden_size": true})", kInvalid, "hidden_size=true must be an integer"},
      {R"({"hidden_size": [[[256]]]})", kInvalid, "hidden_size=(array of 1)"},
      {R"({"rms_norm_eps": "1e-6"})", kInvalid, "rms_norm_eps"},
      {R"({"norm_topk_prob": 1})", kInvalid, "norm_topk_prob=1 must be true or false"},
      {R"({"hidden_act": 3})", kInvalid, "hidden_act=3 must be a string"},
      {R"({"swiglu_limit": 0})", kInvalid, "swiglu_limit=0"},
      {R"({"swiglu_alpha": "x"})", kInvalid, "swiglu_alpha"},
      {R"({"mlp_bias": 1})", kInvalid, "mlp_bias"},
      {R"({"text_config": 3})", kInvalid, "text_config=3 must be an object"},
      {R"({"kv_lora_rank": 0})", kInvalid, "kv_lora_rank=0"},
      {R"({"sliding_window": "wide", "use_sliding_window": true})", kInvalid, "sliding_window"},
      {R"({"attn_type_list": 1})", kInvalid, "attn_type_list=1"},
      {R"({"rotary_dim": 1})", kInvalid, "rotary_dim=1"},
      {R"({"moe_layer_freq": [1, 0]})", kInvalid, "moe_layer_freq"},
      {R"({"topk_method": 1})", kInvalid, "topk_method=1"},
      {R"({"model_type": "qwen2_moe", "shared_expert_intermediate_size": -1})", kInvalid,
       "shared_expert_intermediate_size=-1"},
      {R"({"model_type": "qwen3_next"})", kInvalid,
       "required key shared_expert_intermediate_size is missing"},
      {R"({"model_type": "mixtral", "moe_intermediate_size": null, "intermediate_size": null})",
       kInvalid, "moe_intermediate_size (or intermediate_size)"},
      {R"({"model_type": 3})", kInvalid, "model_type=3 must be a string"},
      {R"({"mlp_only_layers": 1})", kInvalid, "mlp_only_layers"},
      {R"({"mlp_only_layers": ["1"]})", kInvalid, "mlp_only_layers"},
      {R"({"architectures": "Qwen3MoeForCausalLM"})", kInvalid, "architectures"},
      {R"({"eos_token_id": "2"})", kInvalid, "eos_token_id"},
      {R"({"eos_token_id": [2, "3"]})", kInvalid, "eos_token_id=\"3\""},
      {R"({"rope_scaling": "yarn"})", kInvalid, "rope_scaling=\"yarn\" must be an object"},
      {R"({"rope_parameters": {"rope_theta": "big"}})", kInvalid, "rope_parameters: rope_theta"},
      {R"({"quantization_config": true})", kInvalid, "quantization_config"},
      {R"({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": "lm_head"}})",
       kInvalid, "modules_to_not_convert"},
      {R"({"quantization_config": {"quant_method": "mxfp8", "modules_to_not_convert": ["a", 1]}})",
       kInvalid, "modules_to_not_convert"},
      {R"({"quantization_config": {"quant_method": "gptq", "group_size": 128}})", kInvalid,
       "required key bits"},
      {R"({"quantization_config": {"quant_method": "awq", "bits": 4}})", kInvalid, "group_size"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {}}})",
       kInvalid, "config_groups is missing"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {"group_0": [4]}}})",
       kInvalid, "group_0 must be an object"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {"group_0": {"weights": null}}}})",
       kInvalid, "weights is missing"},
  };
  for (const BadConfig& bad : cases) ExpectRefused(TinyQwen3MoeConfig(bad.patch), bad);
}

// As published: Kimi-K2-Thinking (compressed-tensors), Qwen's GPTQ and AWQ releases, gpt-oss.
TEST(ParseModelConfig, ReadsHowMatricesAreQuantised) {
  struct Case {
    const char* quantization;
    QuantizationConfig expected;
  };
  const Case cases[] = {
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"group_0": {"input_activations": null, "targets": ["Linear"], "weights": {"actorder":
          null, "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
          "symmetric": true}}}, "ignore": ["lm_head", "re:.*self_attn.*"]})",
       {QuantFormat::kPackedInt4, 32, true, 0, {"lm_head", "re:.*self_attn.*"}}},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel",
          "group_size": null, "symmetric": false}}}})",
       {QuantFormat::kPackedInt4, 0, false, 0}},
      {R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})",
       {QuantFormat::kPackedMxFp4, 32, true, 0}},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false,
          "damp_percent": 0.01, "model_seqlen": 2048, "static_groups": false})",
       {QuantFormat::kGptq, 128, true, 1}},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": false,
          "checkpoint_format": "gptq_v2"})",
       {QuantFormat::kGptq, 0, false, 0}},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true,
          "version": "GEMM", "modules_to_not_convert": ["gate"]})",
       {QuantFormat::kAwq, 128, false, 0, {"gate"}}},
      {R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})",
       {QuantFormat::kMxFp4Blocks, 32, true, 0, {"model.layers.*.self_attn"}}},
  };
  for (const Case& each : cases) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                                 ParseModelConfig(TinyQwen3MoeConfig(absl::StrCat(
                                     "{\"quantization_config\": ", each.quantization, "}"))));
    EXPECT_EQ(config.quantization.format, each.expected.format) << each.quantization;
    EXPECT_EQ(config.quantization.group_size, each.expected.group_size) << each.quantization;
    EXPECT_EQ(config.quantization.symmetric, each.expected.symmetric) << each.quantization;
    EXPECT_EQ(config.quantization.zero_offset, each.expected.zero_offset) << each.quantization;
    EXPECT_EQ(config.quantization.ignored, each.expected.ignored) << each.quantization;
  }
}

TEST(ParseModelConfig, RefusesNumbersThatNoModelHas) {
  const BadConfig cases[] = {
      {R"({"hidden_size": 0})", kInvalid, "hidden_size=0"},
      {R"({"hidden_size": -256})", kInvalid, "hidden_size=-256"},
      {R"({"hidden_size": 2147483648})", kInvalid, "hidden_size=2147483648"},
      {R"({"hidden_size": 18446744073709551615})", kInvalid, "hidden_size=18446744073709551615"},
      {R"({"hidden_size": 1e300})", kInvalid, "hidden_size=1e+300"},
      {R"({"num_hidden_layers": 1000000000})", kInvalid, "num_hidden_layers"},
      {R"({"vocab_size": 2000000000})", kInvalid, "vocab_size"},
      {R"({"vocab_size": 4000000, "hidden_size": 4096})", kInvalid, "embed_tokens"},
      {R"({"moe_intermediate_size": 1000000, "hidden_size": 4096})", kInvalid, "gate and up"},
      {R"({"intermediate_size": 1000000, "hidden_size": 4096, "mlp_only_layers": [0]})", kInvalid,
       "dense gate and up"},
      {R"({"num_attention_heads": 1024, "head_dim": 1024, "hidden_size": 4096})", kInvalid,
       "q_proj"},
      {R"({"rms_norm_eps": 0})", kInvalid, "rms_norm_eps=0"},
      {R"({"rms_norm_eps": -1e-6})", kInvalid, "rms_norm_eps"},
      {R"({"rope_theta": 0})", kInvalid, "rope_theta=0"},
      {R"({"num_experts_per_tok": 9})", kInvalid, "num_experts_per_tok=9"},
      {R"({"num_key_value_heads": 3})", kInvalid, "num_key_value_heads=3"},
      {R"({"num_key_value_heads": 16})", kInvalid, "num_key_value_heads=16"},
      {R"({"head_dim": 63})", kInvalid, "rotary_dim=63"},
      {R"({"head_dim": null, "hidden_size": 4})", kInvalid, "head_dim=0"},
      {R"({"partial_rotary_factor": 1.5})", kInvalid, "partial_rotary_factor=1.5"},
      {R"({"partial_rotary_factor": 0})", kInvalid, "rotary_dim=0"},
      {R"({"mlp_only_layers": [4]})", kInvalid, "mlp_only_layers=4"},
      {R"({"mlp_only_layers": [-1]})", kInvalid, "mlp_only_layers=-1"},
      {R"({"decoder_sparse_step": 0})", kInvalid, "decoder_sparse_step=0"},
      {R"({"mlp_layer_types": ["sparse"]})", kInvalid, "mlp_layer_types has 1 entries"},
      {R"({"eos_token_id": -2})", kInvalid, "eos_token_id=-2"},
      {R"({"bos_token_id": 99999999999})", kInvalid, "bos_token_id=99999999999"},
      // -1, which means none, when taken for a signed number.
      {R"({"bos_token_id": 18446744073709551615})", kInvalid, "bos_token_id=18446744073709551615"},
  };
  for (const BadConfig& bad : cases) ExpectRefused(TinyQwen3MoeConfig(bad.patch), bad);
}

TEST(ParseModelConfig, RefusesGroupsThatCannotBeChosenFrom) {
  const BadConfig cases[] = {
      {R"({"n_group": 3, "topk_group": 1})", kInvalid, "n_group=3"},
      {R"({"n_group": 16, "topk_group": 8})", kInvalid, "two or more"},
      {R"({"n_group": 8, "topk_group": 1})", kInvalid,
       "num_experts_per_tok=4 exceeds topk_group=1"},
      {R"({"n_group": 4, "topk_group": 5})", kInvalid, "topk_group=5"},
      {R"({"n_shared_experts": 4096, "moe_intermediate_size": 4096})", kInvalid,
       "n_shared_experts"},
      {R"({"first_k_dense_replace": 4})", kInvalid,
       "config.json: first_k_dense_replace=4 must be from 0 to 3"},
  };
  for (const BadConfig& bad : cases) ExpectRefused(TinyGlm4MoeConfig(bad.patch), bad);
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ModelConfig config,
      ParseModelConfig(TinyGlm4MoeConfig(R"({"n_group": 4, "topk_group": 2})")));
  EXPECT_EQ(config.moe.num_groups, 4);
  EXPECT_EQ(config.moe.top_k_groups, 2);
}

TEST(ParseModelConfig, RefusesTextThatIsNoJsonObject) {
  EXPECT_THAT(ParseModelConfig(""), StatusIs(kInvalid, HasSubstr("config.json is not valid JSON")));
  EXPECT_THAT(ParseModelConfig("{\"a\": 1,}"), StatusIs(kInvalid, HasSubstr("at byte 9")));
  EXPECT_THAT(ParseModelConfig("{\"a\": \"\xff\"}"),
              StatusIs(kInvalid, HasSubstr("not valid JSON")));
  EXPECT_THAT(ParseModelConfig("[]"), StatusIs(kInvalid, HasSubstr("holds array")));
  EXPECT_THAT(ParseModelConfig("{\"hidden_size\": 1e999}"), StatusIs(kInvalid, HasSubstr("JSON")));
}

TEST(ParseModelConfig, RefusesDeepNesting) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  std::string text = TinyQwen3MoeConfig();
  text.replace(text.rfind('}'), 1, ", \"hidden_size\": " + deep + "}");
  EXPECT_THAT(ParseModelConfig(text), StatusIs(kInvalid, HasSubstr("nesting too deep")));
}

TEST(MergeGenerationConfig, AddsStopIdsWithoutRepeats) {
  ATELIER_ASSERT_OK_AND_ASSIGN(ModelConfig config, ParseModelConfig(TinyQwen3MoeConfig()));
  ATELIER_EXPECT_OK(MergeGenerationConfig(R"({"eos_token_id": [7, 2]})", config));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));
  ATELIER_EXPECT_OK(MergeGenerationConfig(R"({"eos_token_id": 9})", config));
  ATELIER_EXPECT_OK(MergeGenerationConfig(R"({"temperature": 0.6})", config));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7, 9));
  EXPECT_THAT(MergeGenerationConfig(R"({"eos_token_id": -4})", config),
              StatusIs(kInvalid, HasSubstr("generation_config.json: eos_token_id=-4")));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7, 9));
}

}  // namespace
}  // namespace atelier
