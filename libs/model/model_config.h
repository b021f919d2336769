#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/model/activation.h"
#include "libs/model/quantization.h"

namespace atelier {

// How the router turns logits into choices (docs/numerics.md has the formulas).
enum class RouterScoring {
  kSoftmax,  // softmax over all experts, the k largest
  kSigmoid,  // sigmoid; chosen by score + correction bias, weighted by the score alone
};

// RMSNorm of q and k before the rotation.
enum class QkNorm {
  kNone,
  kPerHead,  // over head_dim of every head; weights [head_dim]
  kWhole,    // over all heads together; weights [num_heads * head_dim], [num_kv_heads * head_dim]
};

// Grouped-query attention with rotary embedding of the first rotary_dim dims of every head.
struct AttentionConfig {
  int num_heads = 0;      // of queries; a multiple of num_kv_heads
  int num_kv_heads = 0;   // query head h reads key/value head h / (num_heads / num_kv_heads)
  int head_dim = 0;       // num_heads * head_dim need not equal hidden_size
  int rotary_dim = 0;     // even, 2 .. head_dim
  double rope_theta = 0;  // >= 1; frequency i is theta^(-2i / rotary_dim)
  bool interleaved_rope = false;  // rotary pairs are dims 2i and 2i + 1; otherwise i and
                                  // i + rotary_dim / 2
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool output_bias = false;
};

// The mixture of experts of the layers where ModelConfig::is_moe_layer is true.
struct MoeConfig {
  int num_experts = 0;        // E, routed ones; 0 = the model has none, and the rest is void
  int top_k = 0;              // k, 1 .. E
  int intermediate_size = 0;  // I of one routed expert
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalize_weights = true;       // divide the chosen scores by their sum …
  double normalize_epsilon = 0.0;      // … plus this
  double routed_scaling_factor = 1.0;  // of the routed experts' weights, after that; > 0
  bool correction_bias = false;        // the router has one; it takes part in the choice only
  int num_groups = 1;                  // experts fall into equal consecutive groups …
  int top_k_groups = 1;                // … of which only the best may be chosen from; the groups'
                                       // experts suffice for k. 1 and 1 = no groups
  int shared_intermediate_size = 0;    // width of the always-active expert; 0 = none
  bool shared_gate = false;  // its result is multiplied by sigmoid(w . x), of a vector w per layer
  Activation activation{};   // of the routed experts; another one than SwiGLU, and
                             // biases, only in models without dense and shared ones
  bool expert_bias = false;  // gate, up and down of the routed experts have biases
  bool gate_up_alternate = false;  // where one tensor has gate and up of all experts, their
                                   // outputs alternate; otherwise gate's come first
};

// Everything the code needs to know of a model, by properties: nothing branches on a family's name.
// No matrix (2I x H of gate and up together included) has more than 2^31 - 1 elements.
struct ModelConfig {
  std::string model_type;                  // as in config.json, for display and for gateways
  std::vector<std::string> architectures;  // likewise
  std::string dtype;                       // likewise ("bfloat16"; empty = not said): every
                                           // tensor says its own
  int hidden_size = 0;                     // H
  int num_layers = 0;  // decoder layers that are computed (multi-token-prediction layers are not)
  int vocab_size = 0;  // rows of the embedding; may exceed what the tokenizer knows
  int max_position_embeddings = 0;   // longest sequence, in tokens
  int dense_intermediate_size = 0;   // of layers without experts; 0 if there is no such layer
  double rms_norm_eps = 1e-6;        // of every norm, those of q and k too
  bool tie_word_embeddings = false;  // true: the embedding is also the output matrix
  AttentionConfig attention;         // void where beyond_frontend is not empty
  MoeConfig moe;
  std::vector<bool> is_moe_layer;  // [num_layers]
  QuantizationConfig quantization;
  // Union of config.json and generation_config.json, in that order, without repeats. Never
  // negative; an id beyond the vocabulary simply never occurs.
  std::vector<int64_t> eos_token_ids;
  int64_t bos_token_id = -1;  // -1 = none
  int64_t pad_token_id = -1;  // -1 = none

  // What the model needs beside its routed experts and this build's frontend cannot compute, each
  // in words, with the key that says so where one does: "rope_scaling.rope_type=yarn". Empty: it
  // computes the whole model. Workers serve the experts either way.
  std::vector<std::string> beyond_frontend;

  int num_moe_layers() const;
  // UNIMPLEMENTED naming the model_type where no layer has experts: nobody serves such a model,
  // though its layers can be computed.
  absl::Status CheckHasExperts() const;
  // UNIMPLEMENTED naming the model_type and all of beyond_frontend, unless it is empty.
  absl::Status CheckFrontend() const;
  // Checks every field's range and their agreement. The message names field and value.
  absl::Status Validate() const;
};

// From the text of config.json, or of its text_config where a multimodal model has one.
// INVALID_ARGUMENT names the key and value; UNIMPLEMENTED names a model_type (listing the known
// ones), activation or quantisation that no part of this build can compute. What only the frontend
// cannot is in beyond_frontend.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json);

// Adds the stop ids of generation_config.json to `config`.
absl::Status MergeGenerationConfig(absl::string_view generation_config_json, ModelConfig& config);

}  // namespace atelier
