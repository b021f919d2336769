#include "libs/model/model_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/model/architectures.h"
#include "libs/model/config_fields.h"
#include "libs/model/config_limits.h"
#include "libs/model/read_quantization.h"

namespace atelier {
namespace {

using nlohmann::json;

constexpr absl::string_view kConfigFile = "config.json";
constexpr IntRange kTokenIds{0, INT32_MAX};
constexpr IntRange kOptionalTokenId{-1, INT32_MAX};

absl::Status Unsupported(absl::string_view what, absl::string_view value) {
  return absl::UnimplementedError(
      absl::StrCat(kConfigFile, ": ", what, "=", value, " is not supported by this build"));
}

// Refuses what would change the results and cannot be computed; a key that is ignored here is one
// that changes nothing.
void RefuseUnsupported(const Architecture& row, ConfigFields& fields) {
  // use_sliding_window switches the window; where the key is absent the window itself does.
  if (fields.Bool({"use_sliding_window"}, true) && fields.Has({"sliding_window"})) {
    fields.Fail(Unsupported("sliding_window", "(set)"));
  }
  for (const std::string& type : fields.Strings({"layer_types"})) {
    if (type != "full_attention") fields.Fail(Unsupported("layer_types", type));
  }
  const bool sigmoid = row.scoring == RouterScoring::kSigmoid;
  const std::string expected = sigmoid ? "sigmoid" : "softmax";
  const std::string scoring = fields.String({"scoring_func"}, expected);
  if (scoring != expected) fields.Fail(Unsupported("scoring_func", scoring));
}

// The rotary settings, which newer files gather in one object and older ones spread.
struct RotaryFields {
  double theta = 0;
  double partial_factor = 1;
};

RotaryFields ReadRotary(const Architecture& row, ConfigFields& fields) {
  constexpr DoubleRange kTheta{1.0, 1e15};
  constexpr DoubleRange kFactor{0.0, 1.0};
  const json empty = json::object();
  for (absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    const json* object = fields.Object({key});
    ConfigFields inner(object == nullptr ? empty : *object, absl::StrCat(kConfigFile, ": ", key));
    const std::string type = inner.String({"rope_type", "type"}, "default");
    if (type != "default") fields.Fail(Unsupported(absl::StrCat(key, ".rope_type"), type));
    fields.Fail(inner.status());
  }
  const json* object = fields.Object({"rope_parameters"});
  ConfigFields gathered(object == nullptr ? empty : *object,
                        absl::StrCat(kConfigFile, ": rope_parameters"));
  RotaryFields rotary;
  rotary.partial_factor =
      gathered.Has({"partial_rotary_factor"})
          ? gathered.RequireDouble({"partial_rotary_factor"}, kFactor)
          : fields.Double({"partial_rotary_factor"}, kFactor, row.partial_rotary_factor);
  rotary.theta = gathered.Has({"rope_theta"}) ? gathered.RequireDouble({"rope_theta"}, kTheta)
                                              : fields.RequireDouble({"rope_theta"}, kTheta);
  fields.Fail(gathered.status());
  return rotary;
}

AttentionConfig ReadAttention(const Architecture& row, int hidden_size, ConfigFields& fields) {
  AttentionConfig attention;
  attention.num_heads = fields.RequireInt({"num_attention_heads"}, {1, kMaxHeads});
  attention.num_kv_heads = fields.Int({"num_key_value_heads"}, {1, kMaxHeads}, attention.num_heads);
  attention.head_dim =
      fields.Int({"head_dim"}, {1, kMaxHeadDim}, hidden_size / attention.num_heads);
  const RotaryFields rotary = ReadRotary(row, fields);
  attention.rope_theta = rotary.theta;
  attention.rotary_dim = static_cast<int>(attention.head_dim * rotary.partial_factor);
  attention.qk_norm = row.always_qk_norm || fields.Bool({"use_qk_norm"}, false);
  attention.qkv_bias = fields.Bool({"attention_bias"}, false);
  attention.output_bias = attention.qkv_bias && row.output_bias_with_qkv;
  return attention;
}

// hidden_act names the form; swiglu_limit and swiglu_alpha are what some files say beside it.
Activation ReadActivation(ConfigFields& fields) {
  constexpr DoubleRange kPositive{1e-6, 1e6};
  Activation activation;
  const std::string name = fields.String({"hidden_act", "hidden_activation"}, "silu");
  if (name == "swigluoai") {
    activation = {1.702f, 7.0f, false, 1.0f};
  } else if (name != "silu" && name != "swish") {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(kConfigFile, ": hidden_act=", name,
                     " is not supported by this build, which computes silu, swish and swigluoai")));
  }
  const double alpha = double{activation.alpha}, limit = double{activation.limit};
  activation.alpha = static_cast<float>(fields.Double({"swiglu_alpha"}, kPositive, alpha));
  activation.limit = static_cast<float>(fields.Double({"swiglu_limit"}, kPositive, limit));
  return activation;
}

MoeConfig ReadMoe(const Architecture& row, ConfigFields& fields) {
  MoeConfig moe;
  moe.num_experts =
      fields.RequireInt({"num_experts", "num_local_experts", "n_routed_experts"}, {1, kMaxExperts});
  moe.top_k = fields.RequireInt({"num_experts_per_tok"}, {1, kMaxExperts});
  moe.intermediate_size = fields.RequireInt({"moe_intermediate_size"}, {1, kMaxIntermediateSize});
  moe.scoring = row.scoring;
  moe.correction_bias = row.correction_bias;
  moe.normalize_weights = fields.Bool({"norm_topk_prob"}, row.normalize_weights);
  moe.normalize_epsilon = row.normalize_epsilon;
  moe.routed_scaling_factor = fields.Double({"routed_scaling_factor"}, {1e-6, 1e6}, 1.0);
  moe.num_groups = fields.Int({"n_group"}, {1, kMaxExperts}, 1);
  moe.top_k_groups = fields.Int({"topk_group"}, {1, kMaxExperts}, 1);
  moe.activation = ReadActivation(fields);
  moe.expert_bias = fields.Bool({"mlp_bias"}, row.expert_bias);
  const int64_t num_shared =
      fields.Int({"n_shared_experts"}, {0, kMaxExperts}, row.num_shared_experts);
  const int64_t shared_size = num_shared * moe.intermediate_size;
  if (shared_size > kMaxIntermediateSize) {
    fields.Fail(absl::InvalidArgumentError(absl::StrCat(
        kConfigFile, ": n_shared_experts=", num_shared,
        " of moe_intermediate_size=", moe.intermediate_size, " exceed ", kMaxIntermediateSize)));
    return moe;
  }
  moe.shared_intermediate_size = static_cast<int>(shared_size);
  return moe;
}

// mlp_layer_types says it layer by layer; without it three counting rules apply together.
std::vector<bool> ReadMoeLayers(const Architecture& row, int num_layers, ConfigFields& fields) {
  std::vector<bool> is_moe(static_cast<size_t>(num_layers), true);
  const std::vector<std::string> types = fields.Strings({"mlp_layer_types"});
  const int step = fields.Int({"decoder_sparse_step"}, {1, kMaxLayers}, 1);
  const int first =
      fields.Int({"first_k_dense_replace"}, {0, num_layers - 1}, row.first_dense_layers);
  const std::vector<int64_t> dense = fields.Ints({"mlp_only_layers"}, {0, num_layers - 1});
  if (types.empty()) {
    for (int layer = 0; layer < num_layers; ++layer) {
      is_moe[static_cast<size_t>(layer)] = layer >= first && (layer + 1) % step == 0;
    }
    for (int64_t layer : dense) is_moe[static_cast<size_t>(layer)] = false;
    return is_moe;
  }
  if (types.size() != is_moe.size()) {
    fields.Fail(
        absl::InvalidArgumentError(absl::StrCat(kConfigFile, ": mlp_layer_types has ", types.size(),
                                                " entries for num_hidden_layers=", num_layers)));
    return is_moe;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != "sparse" && types[layer] != "dense") {
      fields.Fail(Unsupported("mlp_layer_types", types[layer]));
    }
    is_moe[layer] = types[layer] == "sparse";
  }
  return is_moe;
}

ModelConfig ReadConfig(const Architecture& row, ConfigFields& fields) {
  RefuseUnsupported(row, fields);
  ModelConfig config;
  config.model_type = std::string(row.model_type);
  config.architectures = fields.Strings({"architectures"});
  config.dtype = fields.String({"dtype", "torch_dtype"}, "");
  config.hidden_size = fields.RequireInt({"hidden_size"}, {1, kMaxHiddenSize});
  config.num_layers = fields.RequireInt({"num_hidden_layers"}, {1, kMaxLayers});
  config.vocab_size = fields.RequireInt({"vocab_size"}, {1, kMaxVocabSize});
  config.max_position_embeddings =
      fields.RequireInt({"max_position_embeddings"}, {1, kMaxPositions});
  config.rms_norm_eps = fields.RequireDouble({"rms_norm_eps"}, {1e-30, 1.0});
  config.tie_word_embeddings = fields.Bool({"tie_word_embeddings"}, false);
  config.attention = ReadAttention(row, config.hidden_size, fields);
  config.moe = ReadMoe(row, fields);
  config.quantization = ReadQuantization(fields);
  config.is_moe_layer = ReadMoeLayers(row, config.num_layers, fields);
  if (config.num_moe_layers() < config.num_layers) {
    config.dense_intermediate_size =
        fields.RequireInt({"intermediate_size"}, {1, kMaxIntermediateSize});
  }
  config.eos_token_ids = fields.IntOrInts({"eos_token_id"}, kTokenIds);
  config.bos_token_id = fields.Int({"bos_token_id"}, kOptionalTokenId, -1);
  config.pad_token_id = fields.Int({"pad_token_id"}, kOptionalTokenId, -1);
  return config;
}

}  // namespace

int ModelConfig::num_moe_layers() const {
  return static_cast<int>(std::count(is_moe_layer.begin(), is_moe_layer.end(), true));
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json) {
  ATELIER_ASSIGN_OR_RETURN(const json object, ParseJsonObject(config_json, kConfigFile));
  ConfigFields fields(object, kConfigFile);
  const std::string model_type = fields.String({"model_type"}, "");
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (model_type.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kConfigFile, ": required key model_type is missing or empty"));
  }
  const Architecture* row = FindArchitecture(model_type);
  if (row == nullptr) {
    return absl::UnimplementedError(absl::StrCat(kConfigFile, ": model_type=", model_type,
                                                 " is not supported by this build, which knows ",
                                                 KnownModelTypes()));
  }
  ModelConfig config = ReadConfig(*row, fields);
  ATELIER_RETURN_IF_ERROR(fields.status());
  ATELIER_RETURN_IF_ERROR(config.Validate());
  return config;
}

absl::Status MergeGenerationConfig(absl::string_view generation_config_json, ModelConfig& config) {
  constexpr absl::string_view kFile = "generation_config.json";
  ATELIER_ASSIGN_OR_RETURN(const json object, ParseJsonObject(generation_config_json, kFile));
  ConfigFields fields(object, kFile);
  const std::vector<int64_t> ids = fields.IntOrInts({"eos_token_id"}, kTokenIds);
  ATELIER_RETURN_IF_ERROR(fields.status());
  std::vector<int64_t>& known = config.eos_token_ids;
  for (int64_t id : ids) {
    if (std::find(known.begin(), known.end(), id) == known.end()) known.push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace atelier
