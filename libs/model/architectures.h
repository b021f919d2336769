#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/model/model_config.h"

namespace atelier {

// What config.json leaves unsaid about the models of one model_type, because their reference code
// has it built in, and the defaults of the keys that it may leave out.
struct Architecture {
  absl::string_view model_type;
  absl::string_view gguf_name;   // general.architecture of its GGUF files
  absl::string_view class_name;  // which config.json would name

  // Built in.
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool correction_bias = false;       // the router has a bias that takes part in the choice only
  double normalize_epsilon = 0.0;     // added to the sum that weights are divided by
  bool output_bias_with_qkv = false;  // attention_bias covers o_proj too, not q, k and v only
  bool always_qk_norm = false;        // otherwise the key use_qk_norm decides (absent = no)

  // Defaults.
  bool normalize_weights = true;       // norm_topk_prob
  double partial_rotary_factor = 1.0;  // partial_rotary_factor
  int first_dense_layers = 0;          // first_k_dense_replace
  int num_shared_experts = 0;          // n_shared_experts
  bool expert_bias = false;            // mlp_bias
};

// Every row, by model_type.
absl::Span<const Architecture> AllArchitectures();

// nullptr for a model_type that this build does not know.
const Architecture* FindArchitecture(absl::string_view model_type);

// Likewise by general.architecture of a GGUF file.
const Architecture* FindGgufArchitecture(absl::string_view name);

// "glm4_moe, qwen3_moe" and "glm4moe, qwen3moe": for messages.
std::string KnownModelTypes();
std::string KnownGgufNames();

}  // namespace atelier
