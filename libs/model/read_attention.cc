#include "libs/model/read_attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/model/config_limits.h"

namespace atelier {
namespace {

using nlohmann::json;

constexpr absl::string_view kConfigFile = "config.json";

void AddOnce(std::string what, std::vector<std::string>& list) {
  if (std::find(list.begin(), list.end(), what) == list.end()) list.push_back(std::move(what));
}

// Kinds of attention other than full.
void FindOtherKinds(ConfigFields& fields, ModelConfig& config) {
  std::vector<std::string>& beyond = config.beyond_frontend;
  // use_sliding_window switches the window; where the key is absent the window itself does.
  if (fields.Bool({"use_sliding_window"}, true) && fields.Has({"sliding_window"})) {
    const int window = fields.RequireInt({"sliding_window"}, {1, kMaxPositions});
    beyond.push_back(absl::StrCat("sliding_window=", window));
  }
  for (const std::string& type : fields.Strings({"layer_types"})) {
    if (type != "full_attention") AddOnce(absl::StrCat("layer_types=", type), beyond);
  }
  for (const int64_t type : fields.Ints({"attn_type_list"}, {0, INT32_MAX})) {
    if (type != 1) AddOnce(absl::StrCat("attn_type_list=", type), beyond);
  }
  if (fields.Has({"clip_qkv"})) beyond.push_back("clip_qkv");
}

// The rotary settings, which newer files gather in one object and older ones spread.
void ReadRotary(const Architecture& row, ConfigFields& fields, ModelConfig& config) {
  constexpr DoubleRange kTheta{1.0, 1e15};
  constexpr DoubleRange kFactor{0.0, 1.0};
  const json empty = json::object();
  for (absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    const json* object = fields.Object({key});
    ConfigFields inner(object == nullptr ? empty : *object, absl::StrCat(kConfigFile, ": ", key));
    const std::string type = inner.String({"rope_type", "type"}, "default");
    if (type != "default") {
      config.beyond_frontend.push_back(absl::StrCat(key, ".rope_type=", type));
    }
    fields.Fail(inner.status());
  }
  const json* object = fields.Object({"rope_parameters"});
  ConfigFields gathered(object == nullptr ? empty : *object,
                        absl::StrCat(kConfigFile, ": rope_parameters"));
  AttentionConfig& attention = config.attention;
  attention.rope_theta = gathered.Has({"rope_theta"})
                             ? gathered.RequireDouble({"rope_theta"}, kTheta)
                             : fields.RequireDouble({"rope_theta"}, kTheta);
  const double factor =
      gathered.Has({"partial_rotary_factor"})
          ? gathered.RequireDouble({"partial_rotary_factor"}, kFactor)
          : fields.Double({"partial_rotary_factor"}, kFactor, row.partial_rotary_factor);
  attention.rotary_dim =
      fields.Int({"rotary_dim"}, {2, kMaxHeadDim}, static_cast<int>(attention.head_dim * factor));
  fields.Fail(gathered.status());
}

}  // namespace

void ReadAttention(const Architecture& row, ConfigFields& fields, ModelConfig& config) {
  FindOtherKinds(fields, config);
  const int rank = fields.Int({"kv_lora_rank"}, {1, kMaxHiddenSize}, 0);
  if (rank > 0) {  // of its shapes nothing is the same
    config.beyond_frontend.push_back(absl::StrCat("kv_lora_rank=", rank));
    return;
  }
  AttentionConfig& attention = config.attention;
  attention.num_heads = fields.RequireInt({"num_attention_heads"}, {1, kMaxHeads});
  attention.num_kv_heads = fields.Int({"num_key_value_heads"}, {1, kMaxHeads}, attention.num_heads);
  attention.head_dim =
      fields.Int({"head_dim"}, {1, kMaxHeadDim}, config.hidden_size / attention.num_heads);
  ReadRotary(row, fields, config);
  const bool qk_norm = row.always_qk_norm || fields.Bool({"use_qk_norm"}, false);
  attention.qk_norm = qk_norm ? row.qk_norm : QkNorm::kNone;
  attention.qkv_bias = fields.Bool({"qkv_bias", "attention_bias"}, row.qkv_bias);
  attention.output_bias = attention.qkv_bias && row.output_bias_with_qkv;
}

}  // namespace atelier
