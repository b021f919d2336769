#include "libs/model/gguf_config.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/model/architectures.h"
#include "libs/model/config_limits.h"

namespace atelier {
namespace {

using IntRange = GgufFields::IntRange;
using DoubleRange = GgufFields::DoubleRange;

// The keys of one architecture: "qwen3moe.block_count".
class ModelKeys {
 public:
  explicit ModelKeys(const Architecture& row) : prefix_(absl::StrCat(row.gguf_name, ".")) {}
  std::string operator()(absl::string_view key) const { return absl::StrCat(prefix_, key); }

 private:
  const std::string prefix_;
};

void RefuseUnimplemented(const std::string& key, GgufFields& fields) {
  fields.Refuse(key, "is not supported by this build", absl::StatusCode::kUnimplemented);
}

// Forms of the experts' mathematics that no part of this build computes.
void RefuseUnsupported(const ModelKeys& key, GgufFields& fields) {
  for (const char* name : {"hidden_activation", "swiglu_clamp_exp", "interleave_moe_layer_step",
                           "moe_every_n_layers"}) {
    if (fields.Has(key(name))) RefuseUnimplemented(key(name), fields);
  }
}

// What would change the results and the frontend cannot compute.
void FindBeyondFrontend(const ModelKeys& key, GgufFields& fields,
                        std::vector<std::string>& beyond) {
  const std::string scaling = key("rope.scaling.type");
  const std::string type = fields.String(scaling, "none");
  if (type != "none" && !type.empty()) beyond.push_back(fields.Said(scaling));
  if (fields.Double(key("rope.scale_linear"), {-1e9, 1e9}, 1.0) != 1.0) {
    beyond.push_back(fields.Said(key("rope.scale_linear")));
  }
  // Where the type is absent, programs take a factor for linear scaling; 0 = none.
  const double factor = fields.Double(key("rope.scaling.factor"), {0.0, 1e9}, 1.0);
  if (!fields.Has(scaling) && factor != 0.0 && factor != 1.0) {
    beyond.push_back(fields.Said(key("rope.scaling.factor")));
  }
  for (const char* name :
       {"rope.dimension_sections", "attention.q_lora_rank", "attention.kv_lora_rank",
        "attention.key_length_mla", "attention.indexer.head_count", "full_attention_interval",
        "ssm.state_size"}) {
    if (fields.Has(key(name))) beyond.push_back(fields.Said(key(name)));
  }
  if (fields.Int(key("attention.sliding_window"), {0, INT32_MAX}, 0) != 0) {
    beyond.push_back(fields.Said(key("attention.sliding_window")));
  }
  const std::string values = key("attention.value_length");
  if (fields.Has(values) && fields.Int(values, {1, kMaxHiddenSize}, 1) !=
                                fields.Int(key("attention.key_length"), {1, kMaxHiddenSize}, 1)) {
    beyond.push_back(absl::StrCat(fields.Said(values), " and another key_length"));
  }
}

AttentionConfig ReadAttention(const ModelKeys& key, int hidden_size, const Architecture& row,
                              const GgufTensorFacts& facts, GgufFields& fields) {
  AttentionConfig attention;
  attention.num_heads = fields.RequireInt(key("attention.head_count"), {1, kMaxHeads});
  attention.num_kv_heads =
      fields.Int(key("attention.head_count_kv"), {1, kMaxHeads}, attention.num_heads);
  attention.head_dim = fields.Int(key("attention.key_length"), {1, kMaxHeadDim},
                                  std::max(hidden_size / attention.num_heads, 1));
  attention.rotary_dim =
      fields.Int(key("rope.dimension_count"), {1, kMaxHeadDim}, attention.head_dim);
  attention.rope_theta = fields.RequireDouble(key("rope.freq_base"), {1.0, 1e15});
  attention.interleaved_rope = row.gguf_interleaved_rope;
  attention.qk_norm = row.always_qk_norm || facts.has_qk_norm ? row.qk_norm : QkNorm::kNone;
  attention.qkv_bias = facts.has_qkv_bias;
  attention.output_bias = facts.has_output_bias;
  return attention;
}

enum GatingFunction { kUnsaid = 0, kSoftmaxGating = 1, kSigmoidGating = 2 };

int ReadGating(const ModelKeys& key, GgufFields& fields) {
  return fields.Int(key("expert_gating_func"), {0, 255}, kUnsaid);
}

RouterScoring ReadScoring(const ModelKeys& key, const Architecture& row, GgufFields& fields,
                          std::vector<std::string>& beyond) {
  const int function = ReadGating(key, fields);
  if (function > kSigmoidGating) beyond.push_back(fields.Said(key("expert_gating_func")));
  if (function == kSoftmaxGating) return RouterScoring::kSoftmax;
  return function == kUnsaid ? row.scoring : RouterScoring::kSigmoid;
}

// The width of one routed expert.
int ReadWidth(const ModelKeys& key, const Architecture& row, GgufFields& fields) {
  const bool dense = row.experts_have_dense_width && !fields.Has(key("expert_feed_forward_length"));
  return fields.RequireInt(key(dense ? "feed_forward_length" : "expert_feed_forward_length"),
                           {1, kMaxIntermediateSize});
}

void ReadSharedExpert(const ModelKeys& key, const Architecture& row, GgufFields& fields,
                      MoeConfig& moe) {
  const std::string width_key = key("expert_shared_feed_forward_length");
  if (row.shared_expert_gate) {
    moe.shared_intermediate_size = fields.RequireInt(width_key, {0, kMaxIntermediateSize});
    moe.shared_gate = moe.shared_intermediate_size > 0;
    return;
  }
  const int shared = fields.Int(key("expert_shared_count"), {0, kMaxExperts}, 0);
  const int width = fields.Int(width_key, {0, kMaxIntermediateSize}, moe.intermediate_size);
  if (int64_t{shared} * width > kMaxIntermediateSize) {
    fields.Refuse(key("expert_shared_count"), "makes the shared expert too wide");
    return;
  }
  moe.shared_intermediate_size = shared * width;
}

MoeConfig ReadMoe(const ModelKeys& key, const Architecture& row, GgufFields& fields,
                  std::vector<std::string>& beyond) {
  MoeConfig moe;
  moe.num_experts = fields.RequireInt(key("expert_count"), {1, kMaxExperts});
  moe.top_k = fields.RequireInt(key("expert_used_count"), {1, kMaxExperts});
  moe.intermediate_size = ReadWidth(key, row, fields);
  moe.scoring = ReadScoring(key, row, fields, beyond);
  moe.correction_bias = row.correction_bias;
  moe.normalize_weights = fields.Bool(key("expert_weights_norm"), row.gguf_normalize_weights);
  moe.normalize_epsilon = row.normalize_epsilon;
  const double scale = fields.Double(key("expert_weights_scale"), {0.0, 1e6}, 1.0);
  moe.routed_scaling_factor = scale == 0.0 ? 1.0 : scale;  // 0 = none
  moe.num_groups = fields.Int(key("expert_group_count"), {1, kMaxExperts}, 1);
  moe.top_k_groups = fields.Int(key("expert_group_used_count"), {1, kMaxExperts}, 1);
  if (moe.num_groups > 1 && moe.scoring != RouterScoring::kSigmoid) {
    beyond.push_back(fields.Said(key("expert_group_count")) + " with softmax scores");
  }
  moe.activation = row.activation;
  moe.expert_bias = row.expert_bias;
  moe.gate_up_alternate = row.gate_up_alternate;
  ReadSharedExpert(key, row, fields, moe);
  return moe;
}

// The file counts multi-token-prediction layers, which follow the decoder's.
int ReadNumLayers(const ModelKeys& key, GgufFields& fields) {
  const int blocks = fields.RequireInt(key("block_count"), {1, kMaxLayers});
  const int predicting = fields.Int(key("nextn_predict_layers"), {0, kMaxLayers}, 0);
  if (predicting < blocks) return blocks - predicting;
  fields.Refuse(key("nextn_predict_layers"), absl::StrCat("leaves none of block_count=", blocks));
  return 1;
}

int64_t TokenId(const char* key, GgufFields& fields) { return fields.Int(key, {0, INT32_MAX}, -1); }

// Not <|end|>: some models end each part of an answer with it.
constexpr absl::string_view kNamesOfEnds[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                              "<|eot_id|>",    "<|eom_id|>",      "<end_of_turn>"};
constexpr int64_t kControlToken = 3;  // in tokenizer.ggml.token_type

void AddOnce(int64_t id, std::vector<int64_t>& ids) {
  if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

// Leading layers are dense, or all.
void ReadLayers(const ModelKeys& key, const Architecture& row, GgufFields& fields,
                ModelConfig& config) {
  config.num_layers = ReadNumLayers(key, fields);
  const int dense = row.has_experts
                        ? fields.Int(key("leading_dense_block_count"), {0, config.num_layers}, 0)
                        : config.num_layers;
  config.is_moe_layer.assign(static_cast<size_t>(config.num_layers), true);
  std::fill_n(config.is_moe_layer.begin(), dense, false);
  if (dense == 0) return;
  config.dense_intermediate_size =
      fields.RequireInt(key("feed_forward_length"), {1, kMaxIntermediateSize});
}

ModelConfig ReadConfig(const Architecture& row, const GgufTensorFacts& facts, GgufFields& fields) {
  const ModelKeys key(row);
  RefuseUnsupported(key, fields);
  ModelConfig config;
  std::vector<std::string>& beyond = config.beyond_frontend;
  if (!row.beyond_frontend.empty()) beyond.push_back(std::string(row.beyond_frontend));
  FindBeyondFrontend(key, fields, beyond);
  for (const std::string& tensor : facts.unknown) beyond.push_back(tensor);
  config.model_type = std::string(row.model_type);
  config.architectures = {std::string(row.class_name)};
  config.hidden_size = fields.RequireInt(key("embedding_length"), {1, kMaxHiddenSize});
  ReadLayers(key, row, fields, config);
  config.vocab_size = static_cast<int>(std::min(facts.vocab_size, kMaxVocabSize + 1));
  config.max_position_embeddings = fields.RequireInt(key("context_length"), {1, kMaxPositions});
  config.rms_norm_eps = fields.RequireDouble(key("attention.layer_norm_rms_epsilon"), {1e-30, 1.0});
  config.tie_word_embeddings = !facts.has_output;
  if (beyond.empty()) {
    config.attention = ReadAttention(key, config.hidden_size, row, facts, fields);
  }
  if (row.has_experts) config.moe = ReadMoe(key, row, fields, beyond);
  config.eos_token_ids = GgufStopIds(fields);
  config.bos_token_id = TokenId("tokenizer.ggml.bos_token_id", fields);
  config.pad_token_id = TokenId("tokenizer.ggml.padding_token_id", fields);
  return config;
}

// Rows of one name differ by whether there are experts, and by their scores.
const Architecture* FindRow(const std::string& name, GgufFields& fields) {
  const Architecture* first = nullptr;
  for (const Architecture& row : AllArchitectures()) {
    if (row.gguf_name != name || name.empty()) continue;
    if (first == nullptr) first = &row;
    const ModelKeys key(row);
    const bool has_experts = fields.Int(key("expert_count"), {0, kMaxExperts}, 0) > 0;
    const int gating = ReadGating(key, fields);
    const bool sigmoid = row.scoring == RouterScoring::kSigmoid;
    if (row.has_experts != has_experts) continue;
    if (gating == kUnsaid || sigmoid == (gating == kSigmoidGating)) return &row;
  }
  return first;
}

}  // namespace

std::vector<int64_t> GgufStopIds(GgufFields& fields) {
  std::vector<int64_t> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    AddOnce(TokenId(key, fields), ids);
  }
  const GgufValue* tokens = fields.Array("tokenizer.ggml.tokens", GgufValueType::kString);
  const GgufValue* types = fields.Array("tokenizer.ggml.token_type", GgufValueType::kI32);
  if (tokens == nullptr || types == nullptr) return ids;
  GgufArrayReader texts(*tokens), kinds(*types);
  for (int64_t id = 0; !texts.done() && !kinds.done(); ++id) {
    const absl::string_view text = texts.Next().text;
    if (kinds.Next().integer != kControlToken) continue;
    const bool ends =
        std::find(std::begin(kNamesOfEnds), std::end(kNamesOfEnds), text) != std::end(kNamesOfEnds);
    if (ends) AddOnce(id, ids);
  }
  return ids;
}

absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufMetadata& metadata,
                                            const GgufTensorFacts& facts) {
  GgufFields fields(metadata);
  constexpr char kArchitecture[] = "general.architecture";
  const std::string name = fields.RequireString(kArchitecture);
  ATELIER_RETURN_IF_ERROR(fields.status());
  const Architecture* row = FindRow(name, fields);
  if (row == nullptr) {
    fields.Refuse(kArchitecture,
                  absl::StrCat("is not supported by this build, which knows ", KnownGgufNames()),
                  absl::StatusCode::kUnimplemented);
    return fields.status();
  }
  const ModelConfig config = ReadConfig(*row, facts, fields);
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (facts.vocab_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.file, ": there is no tensor token_embd.weight"));
  }
  const absl::Status valid = config.Validate();
  if (valid.ok()) return config;
  return absl::Status(valid.code(), absl::StrCat(metadata.file, ": ", valid.message()));
}

}  // namespace atelier
