#include "services/gpu-frontend/graph/weights.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/progress.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/tensor_list.h"
#include "services/gpu-frontend/graph/tensor_loader.h"

namespace atelier {
namespace {

absl::StatusOr<AttentionWeights> LoadAttention(TensorLoader& loader, const ModelConfig& config,
                                               const std::string& layer) {
  const AttentionConfig& shape = config.attention;
  const std::string prefix = absl::StrCat(layer, "self_attn.");
  const int q_rows = shape.num_heads * shape.head_dim;
  const std::vector<int> rows = {q_rows, shape.num_kv_heads * shape.head_dim,
                                 shape.num_kv_heads * shape.head_dim};
  const auto names = [&](const char* suffix) {
    return std::vector<std::string>{absl::StrCat(prefix, "q_proj.", suffix),
                                    absl::StrCat(prefix, "k_proj.", suffix),
                                    absl::StrCat(prefix, "v_proj.", suffix)};
  };
  AttentionWeights weights;
  ATELIER_ASSIGN_OR_RETURN(weights.qkv, loader.Matrix(names("weight"), rows, config.hidden_size));
  ATELIER_ASSIGN_OR_RETURN(weights.output, loader.Matrix({absl::StrCat(prefix, "o_proj.weight")},
                                                         {config.hidden_size}, q_rows));
  if (shape.qkv_bias) {
    ATELIER_ASSIGN_OR_RETURN(weights.qkv_bias, loader.StackedFloats(names("bias"), rows));
  }
  if (shape.output_bias) {
    ATELIER_ASSIGN_OR_RETURN(weights.output_bias, loader.Floats(absl::StrCat(prefix, "o_proj.bias"),
                                                                config.hidden_size));
  }
  if (shape.qk_norm != QkNorm::kNone) {
    const bool whole = shape.qk_norm == QkNorm::kWhole;
    ATELIER_ASSIGN_OR_RETURN(weights.q_norm, loader.Floats(absl::StrCat(prefix, "q_norm.weight"),
                                                           whole ? q_rows : shape.head_dim));
    ATELIER_ASSIGN_OR_RETURN(weights.k_norm, loader.Floats(absl::StrCat(prefix, "k_norm.weight"),
                                                           whole ? rows[1] : shape.head_dim));
  }
  return weights;
}

absl::StatusOr<FfnWeights> LoadFfn(TensorLoader& loader, int hidden, int intermediate,
                                   const std::string& prefix) {
  FfnWeights weights;
  weights.intermediate = intermediate;
  ATELIER_ASSIGN_OR_RETURN(weights.gate_up, loader.Matrix({absl::StrCat(prefix, "gate_proj.weight"),
                                                           absl::StrCat(prefix, "up_proj.weight")},
                                                          {intermediate, intermediate}, hidden));
  ATELIER_ASSIGN_OR_RETURN(weights.down, loader.Matrix({absl::StrCat(prefix, "down_proj.weight")},
                                                       {hidden}, intermediate));
  return weights;
}

absl::StatusOr<RouterWeights> LoadRouter(TensorLoader& loader, const ModelConfig& config,
                                         const std::string& prefix) {
  RouterWeights weights;
  const int experts = config.moe.num_experts;
  ATELIER_ASSIGN_OR_RETURN(weights.weight, loader.FloatRows(absl::StrCat(prefix, "weight"), experts,
                                                            config.hidden_size));
  if (config.moe.correction_bias) {
    ATELIER_ASSIGN_OR_RETURN(
        weights.correction_bias,
        loader.Floats(absl::StrCat(prefix, "e_score_correction_bias"), experts));
  }
  return weights;
}

absl::StatusOr<std::vector<FfnWeights>> LoadExperts(TensorLoader& loader, const ModelConfig& config,
                                                    const ExpertSet& chosen, int layer) {
  std::vector<FfnWeights> experts;
  if (chosen.Count(layer, 0, config.moe.num_experts) == 0) return experts;
  experts.resize(static_cast<size_t>(config.moe.num_experts));
  for (int expert = 0; expert < config.moe.num_experts; ++expert) {
    if (!chosen.Contains(layer, expert)) continue;
    FfnWeights& weights = experts[static_cast<size_t>(expert)];
    weights.intermediate = config.moe.intermediate_size;
    ATELIER_ASSIGN_OR_RETURN(std::tie(weights.gate_up, weights.down), loader.Expert(layer, expert));
  }
  return experts;
}

absl::StatusOr<LayerWeights> LoadLayer(TensorLoader& loader, const ModelConfig& config, int index) {
  const std::string layer = LayerPrefix(index);
  const int hidden = config.hidden_size;
  LayerWeights weights;
  ATELIER_ASSIGN_OR_RETURN(weights.input_norm,
                           loader.Floats(absl::StrCat(layer, "input_layernorm.weight"), hidden));
  ATELIER_ASSIGN_OR_RETURN(
      weights.post_attention_norm,
      loader.Floats(absl::StrCat(layer, "post_attention_layernorm.weight"), hidden));
  ATELIER_ASSIGN_OR_RETURN(weights.attention, LoadAttention(loader, config, layer));
  if (!config.is_moe_layer[static_cast<size_t>(index)]) {
    ATELIER_ASSIGN_OR_RETURN(weights.ffn, LoadFfn(loader, hidden, config.dense_intermediate_size,
                                                  absl::StrCat(layer, "mlp.")));
    return weights;
  }
  ATELIER_ASSIGN_OR_RETURN(weights.router,
                           LoadRouter(loader, config, absl::StrCat(layer, "mlp.gate.")));
  if (config.moe.shared_intermediate_size > 0) {
    ATELIER_ASSIGN_OR_RETURN(weights.ffn,
                             LoadFfn(loader, hidden, config.moe.shared_intermediate_size,
                                     absl::StrCat(layer, "mlp.shared_experts.")));
  }
  if (config.moe.shared_gate) {
    ATELIER_ASSIGN_OR_RETURN(
        weights.shared_gate,
        loader.FloatRows(absl::StrCat(layer, "mlp.shared_expert_gate.weight"), 1, hidden));
  }
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(const Checkpoint& checkpoint,
                                              const ExpertSet& experts, Device& device,
                                              Clock& clock, const Logger& logger) {
  const ModelConfig& config = checkpoint.config();
  TensorLoader loader(checkpoint, device);
  Progress progress(logger, clock, "frontend_loading", "layers", config.num_layers + 1);
  ModelWeights weights;
  const std::string embedding = "model.embed_tokens.weight";
  ATELIER_ASSIGN_OR_RETURN(weights.embedding,
                           loader.BFloat16Rows(embedding, config.vocab_size, config.hidden_size));
  ATELIER_ASSIGN_OR_RETURN(
      weights.head, loader.Matrix({config.tie_word_embeddings ? embedding : "lm_head.weight"},
                                  {config.vocab_size}, config.hidden_size));
  ATELIER_ASSIGN_OR_RETURN(weights.final_norm,
                           loader.Floats("model.norm.weight", config.hidden_size));
  progress.Add(1);
  for (int index = 0; index < config.num_layers; ++index) {
    ATELIER_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(loader, config, index));
    ATELIER_ASSIGN_OR_RETURN(layer.experts, LoadExperts(loader, config, experts, index));
    weights.layers.push_back(std::move(layer));
    progress.Add(1);
  }
  logger.Info("frontend_loaded", {Kv("bytes", loader.bytes_read()), Kv("device", device.name())});
  return weights;
}

}  // namespace atelier
