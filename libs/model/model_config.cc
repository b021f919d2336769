#include "libs/model/model_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/model/architectures.h"
#include "libs/model/config_fields.h"
#include "libs/model/config_limits.h"
#include "libs/model/read_attention.h"
#include "libs/model/read_quantization.h"

namespace atelier {
namespace {

using nlohmann::json;

constexpr absl::string_view kConfigFile = "config.json";
constexpr IntRange kTokenIds{0, INT32_MAX};
constexpr IntRange kOptionalTokenId{-1, INT32_MAX};

// Scores, which the frontend makes of the router's logits.
void FindOtherRouters(const Architecture& row, ConfigFields& fields, ModelConfig& config) {
  const bool sigmoid = row.scoring == RouterScoring::kSigmoid;
  const std::string expected = sigmoid ? "sigmoid" : "softmax";
  const std::string scoring = fields.String({"scoring_func"}, expected);
  if (scoring != expected) {
    config.beyond_frontend.push_back(absl::StrCat("scoring_func=", scoring));
  }
  const std::string method = sigmoid ? "noaux_tc" : "greedy";
  const std::string chosen = fields.String({"topk_method"}, method);
  if (chosen != method) config.beyond_frontend.push_back(absl::StrCat("topk_method=", chosen));
  const int groups = config.moe.num_groups;
  if (!sigmoid && groups > 1) {
    config.beyond_frontend.push_back(absl::StrCat("n_group=", groups, " with softmax scores"));
  }
}

// hidden_act names the form; swiglu_limit and swiglu_alpha are what some files say beside it.
Activation ReadActivation(const Architecture& row, ConfigFields& fields) {
  constexpr DoubleRange kPositive{1e-6, 1e6};
  Activation activation = row.activation;
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
  constexpr IntRange kWidths{1, kMaxIntermediateSize};
  moe.intermediate_size =
      row.experts_have_dense_width
          ? fields.RequireInt({"moe_intermediate_size", "intermediate_size"}, kWidths)
          : fields.RequireInt({"moe_intermediate_size"}, kWidths);
  moe.scoring = row.scoring;
  moe.correction_bias = row.correction_bias;
  moe.normalize_weights = fields.Bool({"norm_topk_prob"}, row.normalize_weights);
  moe.normalize_epsilon = row.normalize_epsilon;
  moe.routed_scaling_factor = fields.Double({"routed_scaling_factor"}, {1e-6, 1e6}, 1.0);
  moe.num_groups = fields.Int({"n_group"}, {1, kMaxExperts}, 1);
  moe.top_k_groups = fields.Int({"topk_group"}, {1, kMaxExperts}, 1);
  moe.activation = ReadActivation(row, fields);
  moe.expert_bias = fields.Bool({"mlp_bias"}, row.expert_bias);
  moe.gate_up_alternate = row.gate_up_alternate;
  if (row.shared_expert_gate) {
    moe.shared_intermediate_size =
        fields.RequireInt({"shared_expert_intermediate_size"}, {0, kMaxIntermediateSize});
    moe.shared_gate = moe.shared_intermediate_size > 0;
    return moe;
  }
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

// mlp_layer_types says it layer by layer; without it four counting rules apply together.
std::vector<bool> ReadMoeLayers(const Architecture& row, int num_layers, ConfigFields& fields) {
  std::vector<bool> is_moe(static_cast<size_t>(num_layers), row.has_experts);
  if (!row.has_experts) return is_moe;
  const std::vector<std::string> types = fields.Strings({"mlp_layer_types"});
  const int step = fields.Int({"decoder_sparse_step"}, {1, kMaxLayers}, 1);
  const int frequency = fields.Int({"moe_layer_freq"}, {1, kMaxLayers}, 1);
  const int first =
      fields.Int({"first_k_dense_replace"}, {0, num_layers - 1}, row.first_dense_layers);
  const std::vector<int64_t> dense = fields.Ints({"mlp_only_layers"}, {0, num_layers - 1});
  if (types.empty()) {
    for (int layer = 0; layer < num_layers; ++layer) {
      is_moe[static_cast<size_t>(layer)] =
          layer >= first && (layer + 1) % step == 0 && layer % frequency == 0;
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
      fields.Fail(absl::UnimplementedError(absl::StrCat(
          kConfigFile, ": mlp_layer_types=", types[layer], " is not supported by this build")));
    }
    is_moe[layer] = types[layer] == "sparse";
  }
  return is_moe;
}

// Dense layers and shared experts are computed by the frontend, as SwiGLU without biases.
void FindOtherActivations(const Architecture& row, ConfigFields& fields, ModelConfig& config) {
  if (!row.has_experts) {
    if (!ReadActivation(row, fields).IsSwiGlu() || fields.Bool({"mlp_bias"}, false)) {
      config.beyond_frontend.push_back("swiglu_limit, swiglu_alpha, swigluoai or mlp_bias");
    }
    return;
  }
  if (config.moe.activation.IsSwiGlu() && !config.moe.expert_bias) return;
  const bool has_dense = config.num_moe_layers() < config.num_layers;
  if (!has_dense && config.moe.shared_intermediate_size == 0) return;
  config.beyond_frontend.push_back(
      absl::StrCat("swiglu_limit, swiglu_alpha, swigluoai or mlp_bias in ",
                   has_dense ? "dense layers" : "shared experts"));
}

void ReadExperts(const Architecture& row, ConfigFields& fields, ModelConfig& config) {
  if (row.has_experts) {
    config.moe = ReadMoe(row, fields);
    FindOtherRouters(row, fields, config);
  }
  config.is_moe_layer = ReadMoeLayers(row, config.num_layers, fields);
  FindOtherActivations(row, fields, config);
}

ModelConfig ReadConfig(const Architecture& row, ConfigFields& fields) {
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
  if (!row.beyond_frontend.empty()) {
    config.beyond_frontend.push_back(std::string(row.beyond_frontend));
  }
  ReadAttention(row, fields, config);
  ReadExperts(row, fields, config);
  config.quantization = ReadQuantization(fields);
  if (config.quantization.format == QuantFormat::kMxFp4Blocks) config.moe.gate_up_alternate = true;
  if (config.num_moe_layers() < config.num_layers) {
    config.dense_intermediate_size =
        fields.RequireInt({"intermediate_size"}, {1, kMaxIntermediateSize});
  }
  config.eos_token_ids = fields.IntOrInts({"eos_token_id"}, kTokenIds);
  config.bos_token_id = fields.Int({"bos_token_id"}, kOptionalTokenId, -1);
  config.pad_token_id = fields.Int({"pad_token_id"}, kOptionalTokenId, -1);
  return config;
}

// Multimodal models keep the language model's keys in an object of their own, and some of what
// concerns the whole checkpoint outside of it.
absl::StatusOr<json> LanguageModel(json object) {
  ConfigFields fields(object, kConfigFile);
  const json* text = fields.Object({"text_config"});
  ATELIER_RETURN_IF_ERROR(fields.status());
  if (text == nullptr) return object;
  json merged = *text;
  for (const char* key : {"architectures", "quantization_config", "eos_token_id", "bos_token_id",
                          "pad_token_id", "dtype", "torch_dtype", "tie_word_embeddings"}) {
    const auto outer = object.find(key);
    if (outer != object.end() && (!merged.contains(key) || merged[key].is_null())) {
      merged[key] = *outer;
    }
  }
  return merged;
}

}  // namespace

int ModelConfig::num_moe_layers() const {
  return static_cast<int>(std::count(is_moe_layer.begin(), is_moe_layer.end(), true));
}

absl::Status ModelConfig::CheckHasExperts() const {
  if (num_moe_layers() > 0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("model_type=", model_type,
                   ": the model has no layer with experts, and no others are served"));
}

absl::Status ModelConfig::CheckFrontend() const {
  if (beyond_frontend.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("model_type=", model_type, ": the frontend of this build cannot compute ",
                   absl::StrJoin(beyond_frontend, ", "), "; expert workers can serve its experts"));
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_json) {
  ATELIER_ASSIGN_OR_RETURN(json whole, ParseJsonObject(config_json, kConfigFile));
  ATELIER_ASSIGN_OR_RETURN(const json object, LanguageModel(std::move(whole)));
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
