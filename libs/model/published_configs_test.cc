#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/model/model_config.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What experts need, and what the keys and values of a published config.json make of it.
struct Published {
  const char* config;
  const char* model_type;
  int hidden, inner, experts, top_k, moe_layers;
  const char* beyond;  // part of what the frontend is said to lack; "" = nothing
};

constexpr char kDeepSeekV3[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 0,
  "eos_token_id": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]}})";

// As Kimi-K2.5 nests it, with the experts of Kimi-K2-Thinking.
constexpr char kKimiK2[] = R"({"architectures": ["KimiK25ForConditionalGeneration"],
  "model_type": "kimi_k25", "vision_config": {"hidden_size": 1152}, "text_config": {
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168, "eos_token_id": 163586,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 262144,
  "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
  "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
  "rms_norm_eps": 1e-05, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
  "scoring_func": "sigmoid", "topk_group": 1, "topk_method": "noaux_tc", "vocab_size": 163840,
  "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
    "strategy": "group", "group_size": 32, "symmetric": true}}}}}})";

constexpr char kQwen3Next[] = R"({
  "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
  "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
  "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
  "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
  "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 10000000, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "vocab_size": 151936})";

constexpr char kQwen35[] = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
  "tie_word_embeddings": false, "text_config": {
  "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "max_position_embeddings": 262144,
  "layer_types": ["linear_attention", "full_attention"],
  "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "num_attention_heads": 16,
  "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "shared_expert_intermediate_size": 512,
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
  "eos_token_id": 248046, "vocab_size": 248320}})";

constexpr char kGptOss[] = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
  "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "intermediate_size": 2880,
  "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 131072,
  "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
  "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
  "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_theta": 150000,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
  "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}})";

constexpr char kMiniMaxM2[] = R"({
  "architectures": ["MiniMaxM2ForCausalLM"], "bos_token_id": 200034, "eos_token_id": 200020,
  "attn_type_list": [1, 1, 1], "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
  "intermediate_size": 1536, "max_position_embeddings": 196608, "model_type": "minimax_m2",
  "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
  "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
  "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64,
  "scoring_func": "sigmoid", "shared_intermediate_size": 0, "tie_word_embeddings": false,
  "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064})";

constexpr char kMixtral[] = R"({
  "architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "vocab_size": 32000})";

constexpr char kOlmoe[] = R"({
  "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "clip_qkv": null,
  "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
  "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false,
  "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
  "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "vocab_size": 50304})";

constexpr char kQwen2Moe[] = R"({
  "architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 151643, "decoder_sparse_step": 1,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
  "max_position_embeddings": 8192, "model_type": "qwen2_moe", "moe_intermediate_size": 1408,
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
  "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632,
  "sliding_window": 32768, "tie_word_embeddings": false, "use_sliding_window": false,
  "vocab_size": 151936})";

constexpr char kGlm5[] = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "eos_token_id": [154820],
  "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 6144, "index_topk": 2048,
  "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 202752,
  "model_type": "glm_moe_dsa", "moe_intermediate_size": 2048, "n_group": 1,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
  "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "q_lora_rank": 2048,
  "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
  "routed_scaling_factor": 2.5, "topk_group": 1, "vocab_size": 154880})";

const Published kPublished[] = {
    {kDeepSeekV3, "deepseek_v3", 7168, 2048, 256, 8, 58, "latent attention, kv_lora_rank=512"},
    {kKimiK2, "kimi_k2", 7168, 2048, 384, 8, 60, "kv_lora_rank=512"},
    {kQwen3Next, "qwen3_next", 2048, 512, 512, 10, 48, "linear attention"},
    {kQwen35, "qwen3_5_moe_text", 2048, 512, 256, 8, 40, "layer_types=linear_attention"},
    {kGptOss, "gpt_oss", 2880, 2880, 128, 4, 36, "sinks and a router with biases, sliding_win"},
    {kMiniMaxM2, "minimax_m2", 3072, 1536, 256, 8, 62, ""},
    {kMixtral, "mixtral", 4096, 14336, 8, 2, 32, ""},
    {kOlmoe, "olmoe", 2048, 1024, 64, 8, 16, ""},
    {kQwen2Moe, "qwen2_moe", 2048, 1408, 60, 4, 24, ""},
    {kGlm5, "glm_moe_dsa", 6144, 2048, 256, 8, 75, "an indexer chooses"},
};

ModelConfig Parsed(const char* text) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  EXPECT_THAT(config, testing::IsOk());
  return config.value_or(ModelConfig{});
}

TEST(PublishedConfigs, SayWhatExpertsNeedAndWhatTheFrontendLacks) {
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.model_type);
    const ModelConfig config = Parsed(published.config);
    EXPECT_EQ(config.model_type, published.model_type);
    EXPECT_EQ(config.hidden_size, published.hidden);
    EXPECT_EQ(config.moe.intermediate_size, published.inner);
    EXPECT_EQ(config.moe.num_experts, published.experts);
    EXPECT_EQ(config.moe.top_k, published.top_k);
    EXPECT_EQ(config.num_moe_layers(), published.moe_layers);
    if (published.beyond[0] == '\0') {
      EXPECT_THAT(config.beyond_frontend, IsEmpty());
    } else {
      EXPECT_THAT(std::string(config.CheckFrontend().message()), HasSubstr(published.beyond));
    }
  }
}

TEST(PublishedConfigs, OfAWrapperHaveItsOuterKeysToo) {
  const ModelConfig config = Parsed(kKimiK2);
  EXPECT_THAT(config.architectures, ElementsAre("KimiK25ForConditionalGeneration"));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(163586));
  EXPECT_EQ(config.quantization.format, QuantFormat::kPackedInt4);
  EXPECT_EQ(config.moe.routed_scaling_factor, 2.827);
}

TEST(PublishedConfigs, OfGptOssHaveItsOwnActivationAndBiases) {
  const ModelConfig config = Parsed(kGptOss);
  EXPECT_EQ(config.moe.activation, (Activation{1.702f, 7.0f, false, 1.0f}));
  EXPECT_TRUE(config.moe.expert_bias);
  EXPECT_TRUE(config.moe.gate_up_alternate);
  EXPECT_EQ(config.quantization.format, QuantFormat::kMxFp4Blocks);
}

TEST(PublishedConfigs, SayHowAttentionAndSharedExpertsDiffer) {
  const ModelConfig minimax = Parsed(kMiniMaxM2);
  EXPECT_EQ(minimax.attention.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(minimax.attention.rotary_dim, 64);
  EXPECT_EQ(minimax.moe.scoring, RouterScoring::kSigmoid);
  EXPECT_TRUE(minimax.moe.correction_bias);
  EXPECT_EQ(minimax.moe.normalize_epsilon, 0.0);
  EXPECT_FALSE(minimax.moe.shared_gate);
  const ModelConfig mixtral = Parsed(kMixtral);
  EXPECT_EQ(mixtral.attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(mixtral.attention.head_dim, 128);
  EXPECT_TRUE(mixtral.moe.normalize_weights);
  const ModelConfig olmoe = Parsed(kOlmoe);
  EXPECT_EQ(olmoe.attention.qk_norm, QkNorm::kWhole);
  EXPECT_FALSE(olmoe.moe.normalize_weights);
  const ModelConfig qwen2 = Parsed(kQwen2Moe);
  EXPECT_TRUE(qwen2.attention.qkv_bias);
  EXPECT_FALSE(qwen2.attention.output_bias);
  EXPECT_TRUE(qwen2.moe.shared_gate);
  EXPECT_EQ(qwen2.moe.shared_intermediate_size, 5632);
}

TEST(PublishedConfigs, OfADenseModelHaveNoExperts) {
  const ModelConfig config = Parsed(R"({"model_type": "llama", "hidden_size": 576,
      "intermediate_size": 1536, "max_position_embeddings": 8192, "num_attention_heads": 9,
      "num_hidden_layers": 30, "num_key_value_heads": 3, "rms_norm_eps": 1e-05,
      "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152})");
  EXPECT_EQ(config.moe.num_experts, 0);
  EXPECT_EQ(config.num_moe_layers(), 0);
  EXPECT_EQ(config.dense_intermediate_size, 1536);
  ATELIER_EXPECT_OK(config.CheckFrontend());
}

}  // namespace
}  // namespace atelier
