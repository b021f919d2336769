#include "libs/model/architectures.h"

#include <set>

#include "absl/strings/str_join.h"

namespace atelier {
namespace {

constexpr absl::string_view kLatentAttention = "multi-head latent attention";
constexpr absl::string_view kSparseLatentAttention =
    "multi-head latent attention of positions that an indexer chooses";
constexpr absl::string_view kLinearAttention =
    "linear attention (gated delta rule) in most layers, gated attention in the others";

// One row per model_type (docs/adding-a-model.md). The only place that knows models by name.
constexpr Architecture kArchitectures[] = {
    {
        .model_type = "deepseek_v2",
        .gguf_name = "deepseek2",
        .class_name = "DeepseekV2ForCausalLM",
        .beyond_frontend = kLatentAttention,
        .normalize_weights = false,
        .gguf_normalize_weights = false,
    },
    {
        .model_type = "deepseek_v3",
        .gguf_name = "deepseek2",
        .class_name = "DeepseekV3ForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .beyond_frontend = kLatentAttention,
        .first_dense_layers = 3,
        .num_shared_experts = 1,
    },
    {
        .model_type = "deepseek_v32",
        .gguf_name = "",
        .class_name = "DeepseekV32ForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .beyond_frontend = kSparseLatentAttention,
        .first_dense_layers = 3,
        .num_shared_experts = 1,
    },
    {
        .model_type = "glm4_moe",
        .gguf_name = "glm4moe",
        .class_name = "Glm4MoeForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .partial_rotary_factor = 0.5,
        .first_dense_layers = 1,
        .num_shared_experts = 1,
    },
    {
        .model_type = "glm_moe_dsa",
        .gguf_name = "glm-dsa",
        .class_name = "GlmMoeDsaForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .beyond_frontend = kSparseLatentAttention,
        .first_dense_layers = 3,
        .num_shared_experts = 1,
    },
    {
        .model_type = "gpt_oss",
        .gguf_name = "gpt-oss",
        .class_name = "GptOssForCausalLM",
        .output_bias_with_qkv = true,
        .experts_have_dense_width = true,
        .gate_up_alternate = true,
        .activation = {1.702f, 7.0f, false, 1.0f},
        .beyond_frontend = "attention sinks and a router with biases",
        .expert_bias = true,
        .qkv_bias = true,
    },
    {
        .model_type = "kimi_k2",
        .gguf_name = "deepseek2",
        .class_name = "DeepseekV3ForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .beyond_frontend = kLatentAttention,
        .first_dense_layers = 3,
        .num_shared_experts = 1,
    },
    {
        .model_type = "llama",
        .gguf_name = "llama",
        .class_name = "LlamaForCausalLM",
        .has_experts = false,
        .output_bias_with_qkv = true,
        .gguf_interleaved_rope = true,
    },
    {
        .model_type = "minimax_m2",
        .gguf_name = "minimax-m2",
        .class_name = "MiniMaxM2ForCausalLM",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .always_qk_norm = true,
        .qk_norm = QkNorm::kWhole,
        .experts_have_dense_width = true,
    },
    {
        .model_type = "mixtral",
        .gguf_name = "llama",
        .class_name = "MixtralForCausalLM",
        .experts_have_dense_width = true,
        .gguf_interleaved_rope = true,
    },
    {
        .model_type = "olmoe",
        .gguf_name = "olmoe",
        .class_name = "OlmoeForCausalLM",
        .output_bias_with_qkv = true,
        .always_qk_norm = true,
        .qk_norm = QkNorm::kWhole,
        .experts_have_dense_width = true,
        .normalize_weights = false,
        .gguf_normalize_weights = false,
    },
    {
        .model_type = "qwen2_moe",
        .gguf_name = "qwen2moe",
        .class_name = "Qwen2MoeForCausalLM",
        .shared_expert_gate = true,
        .normalize_weights = false,
        .gguf_normalize_weights = false,
        .qkv_bias = true,
    },
    {
        .model_type = "qwen3_5_moe_text",
        .gguf_name = "qwen35moe",
        .class_name = "Qwen3_5MoeForCausalLM",
        .shared_expert_gate = true,
        .beyond_frontend = kLinearAttention,
    },
    {
        .model_type = "qwen3_moe",
        .gguf_name = "qwen3moe",
        .class_name = "Qwen3MoeForCausalLM",
        .output_bias_with_qkv = true,
        .always_qk_norm = true,
        .normalize_weights = false,
    },
    {
        .model_type = "qwen3_next",
        .gguf_name = "qwen3next",
        .class_name = "Qwen3NextForCausalLM",
        .shared_expert_gate = true,
        .beyond_frontend = kLinearAttention,
    },
};

// Rows may share a name.
std::string Joined(absl::string_view Architecture::*name) {
  std::set<std::string> names;
  for (const Architecture& row : kArchitectures) {
    if (!(row.*name).empty()) names.insert(std::string(row.*name));
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::Span<const Architecture> AllArchitectures() { return kArchitectures; }

const Architecture* FindArchitecture(absl::string_view model_type) {
  for (const Architecture& row : kArchitectures) {
    if (row.model_type == model_type) return &row;
  }
  return nullptr;
}

std::string KnownModelTypes() { return Joined(&Architecture::model_type); }

std::string KnownGgufNames() { return Joined(&Architecture::gguf_name); }

}  // namespace atelier
