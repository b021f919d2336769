#include "libs/model/architectures.h"

#include "absl/strings/str_join.h"

namespace atelier {
namespace {

// One row per model_type (docs/adding-a-model.md). The only place that knows models by name.
constexpr Architecture kArchitectures[] = {
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
        .model_type = "qwen3_moe",
        .gguf_name = "qwen3moe",
        .class_name = "Qwen3MoeForCausalLM",
        .scoring = RouterScoring::kSoftmax,
        .output_bias_with_qkv = true,
        .always_qk_norm = true,
        .normalize_weights = false,
    },
};

std::string Joined(absl::string_view Architecture::*name) {
  return absl::StrJoin(kArchitectures, ", ", [name](std::string* out, const Architecture& row) {
    out->append(std::string(row.*name));
  });
}

}  // namespace

absl::Span<const Architecture> AllArchitectures() { return kArchitectures; }

const Architecture* FindArchitecture(absl::string_view model_type) {
  for (const Architecture& row : kArchitectures) {
    if (row.model_type == model_type) return &row;
  }
  return nullptr;
}

const Architecture* FindGgufArchitecture(absl::string_view name) {
  for (const Architecture& row : kArchitectures) {
    if (row.gguf_name == name) return &row;
  }
  return nullptr;
}

std::string KnownModelTypes() { return Joined(&Architecture::model_type); }

std::string KnownGgufNames() { return Joined(&Architecture::gguf_name); }

}  // namespace atelier
