#include "libs/model/architectures.h"

#include "absl/strings/str_join.h"

namespace atelier {
namespace {

// One row per model_type (docs/adding-a-model.md). The only place that knows models by name.
constexpr Architecture kArchitectures[] = {
    {
        .model_type = "glm4_moe",
        .scoring = RouterScoring::kSigmoid,
        .correction_bias = true,
        .normalize_epsilon = 1e-20,
        .partial_rotary_factor = 0.5,
        .first_dense_layers = 1,
        .num_shared_experts = 1,
    },
    {
        .model_type = "qwen3_moe",
        .scoring = RouterScoring::kSoftmax,
        .output_bias_with_qkv = true,
        .always_qk_norm = true,
        .normalize_weights = false,
    },
};

}  // namespace

const Architecture* FindArchitecture(absl::string_view model_type) {
  for (const Architecture& row : kArchitectures) {
    if (row.model_type == model_type) return &row;
  }
  return nullptr;
}

std::string KnownModelTypes() {
  return absl::StrJoin(kArchitectures, ", ", [](std::string* out, const Architecture& row) {
    out->append(row.model_type.data(), row.model_type.size());
  });
}

}  // namespace atelier
