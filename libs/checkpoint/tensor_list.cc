#include "libs/checkpoint/tensor_list.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace atelier {
namespace {

constexpr absl::string_view kLayers = "model.layers.";

class TensorList {
 public:
  void Add(std::string name, std::vector<int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }
  void AddLinear(absl::string_view name, int64_t out, int64_t in, bool bias = false) {
    Add(absl::StrCat(name, ".weight"), {out, in});
    if (bias) Add(absl::StrCat(name, ".bias"), {out});
  }
  // The three matrices of a SwiGLU block.
  void AddFfn(absl::string_view prefix, int64_t intermediate, int64_t hidden) {
    AddLinear(absl::StrCat(prefix, "gate_proj"), intermediate, hidden);
    AddLinear(absl::StrCat(prefix, "up_proj"), intermediate, hidden);
    AddLinear(absl::StrCat(prefix, "down_proj"), hidden, intermediate);
  }
  std::vector<PromisedTensor> Take() { return std::move(tensors_); }

 private:
  std::vector<PromisedTensor> tensors_;
};

void AddAttention(const ModelConfig& config, absl::string_view prefix, TensorList& list) {
  const AttentionConfig& attention = config.attention;
  const int64_t q_size = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  const auto name = [&](absl::string_view part) {
    return absl::StrCat(prefix, "self_attn.", part);
  };
  list.AddLinear(name("q_proj"), q_size, config.hidden_size, attention.qkv_bias);
  list.AddLinear(name("k_proj"), kv_size, config.hidden_size, attention.qkv_bias);
  list.AddLinear(name("v_proj"), kv_size, config.hidden_size, attention.qkv_bias);
  list.AddLinear(name("o_proj"), config.hidden_size, q_size, attention.output_bias);
  if (attention.qk_norm == QkNorm::kNone) return;
  const bool whole = attention.qk_norm == QkNorm::kWhole;
  list.Add(name("q_norm.weight"), {whole ? q_size : attention.head_dim});
  list.Add(name("k_norm.weight"), {whole ? kv_size : attention.head_dim});
}

void AddMoe(const ModelConfig& config, absl::string_view prefix, TensorList& list) {
  const MoeConfig& moe = config.moe;
  list.AddLinear(absl::StrCat(prefix, "mlp.gate"), moe.num_experts, config.hidden_size);
  if (moe.correction_bias) {
    list.Add(absl::StrCat(prefix, "mlp.gate.e_score_correction_bias"), {moe.num_experts});
  }
  if (moe.shared_intermediate_size > 0) {
    list.AddFfn(absl::StrCat(prefix, "mlp.shared_experts."), moe.shared_intermediate_size,
                config.hidden_size);
  }
  if (moe.shared_gate) {
    list.AddLinear(absl::StrCat(prefix, "mlp.shared_expert_gate"), 1, config.hidden_size);
  }
}

}  // namespace

std::string LayerPrefix(int layer) { return absl::StrCat(kLayers, layer, "."); }

int LayerOf(absl::string_view name) {
  int layer = 0;
  if (!absl::ConsumePrefix(&name, kLayers)) return -1;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) ? layer : -1;
}

std::vector<PromisedTensor> FrontendTensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  TensorList list;
  list.Add("model.embed_tokens.weight", {config.vocab_size, hidden});
  list.Add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) list.Add("lm_head.weight", {config.vocab_size, hidden});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    list.Add(absl::StrCat(prefix, "input_layernorm.weight"), {hidden});
    list.Add(absl::StrCat(prefix, "post_attention_layernorm.weight"), {hidden});
    AddAttention(config, prefix, list);
    if (config.is_moe_layer[static_cast<size_t>(layer)]) {
      AddMoe(config, prefix, list);
    } else {
      list.AddFfn(absl::StrCat(prefix, "mlp."), config.dense_intermediate_size, hidden);
    }
  }
  return list.Take();
}

std::vector<PromisedTensor> ExpertTensorsAlone(const ModelConfig& config, int layer, int expert) {
  TensorList list;
  const std::string prefix = absl::StrCat(LayerPrefix(layer), "mlp.experts.", expert, ".");
  list.AddFfn(prefix, config.moe.intermediate_size, config.hidden_size);
  if (config.moe.expert_bias) {
    list.Add(absl::StrCat(prefix, "gate_proj.bias"), {config.moe.intermediate_size});
    list.Add(absl::StrCat(prefix, "up_proj.bias"), {config.moe.intermediate_size});
    list.Add(absl::StrCat(prefix, "down_proj.bias"), {config.hidden_size});
  }
  return list.Take();
}

std::vector<PromisedTensor> ExpertTensorsFused(const ModelConfig& config, int layer) {
  const int64_t experts = config.moe.num_experts;
  const int64_t intermediate = config.moe.intermediate_size;
  const int64_t hidden = config.hidden_size;
  const std::string prefix = absl::StrCat(LayerPrefix(layer), "mlp.experts.");
  TensorList list;
  list.Add(absl::StrCat(prefix, "gate_up_proj"), {experts, 2 * intermediate, hidden});
  list.Add(absl::StrCat(prefix, "down_proj"), {experts, hidden, intermediate});
  if (config.moe.expert_bias) {
    list.Add(absl::StrCat(prefix, "gate_up_proj_bias"), {experts, 2 * intermediate});
    list.Add(absl::StrCat(prefix, "down_proj_bias"), {experts, hidden});
  }
  return list.Take();
}

}  // namespace atelier
