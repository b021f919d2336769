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
  absl::string_view gguf_name;   // general.architecture of its GGUF files; rows may share one,
                                 // and empty = none is known
  absl::string_view class_name;  // which config.json would name

  // Built in.
  bool has_experts = true;  // false: every layer is dense, and no worker serves the model
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool correction_bias = false;       // the router has a bias that takes part in the choice only
  double normalize_epsilon = 0.0;     // added to the sum that weights are divided by
  bool output_bias_with_qkv = false;  // attention_bias covers o_proj too, not q, k and v only
  bool always_qk_norm = false;        // otherwise the key use_qk_norm decides (absent = no)
  QkNorm qk_norm = QkNorm::kPerHead;  // which form it has
  bool shared_expert_gate = false;    // the shared expert has a gate, and its width is the key
                                      // shared_expert_intermediate_size
  bool experts_have_dense_width = false;  // a routed expert's width is intermediate_size
  bool gate_up_alternate = false;         // MoeConfig's
  Activation activation{};                // where hidden_act names SwiGLU
  bool gguf_interleaved_rope = false;     // rotary pairs in GGUF files, whose rows of q and k are
                                          // in that order
  // What the layers do beside their routed experts that no key says and this build's frontend
  // cannot compute. Empty = nothing.
  absl::string_view beyond_frontend = "";

  // Defaults.
  bool normalize_weights = true;       // norm_topk_prob
  bool gguf_normalize_weights = true;  // expert_weights_norm of GGUF files
  double partial_rotary_factor = 1.0;  // partial_rotary_factor
  int first_dense_layers = 0;          // first_k_dense_replace
  int num_shared_experts = 0;          // n_shared_experts
  bool expert_bias = false;            // mlp_bias
  bool qkv_bias = false;               // qkv_bias or attention_bias
};

// Every row, by model_type.
absl::Span<const Architecture> AllArchitectures();

// nullptr for a model_type that this build does not know.
const Architecture* FindArchitecture(absl::string_view model_type);

// "glm4_moe, qwen3_moe" and "glm4moe, qwen3moe": for messages.
std::string KnownModelTypes();
std::string KnownGgufNames();

}  // namespace atelier
