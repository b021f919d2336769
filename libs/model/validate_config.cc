#include <cmath>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/model/config_limits.h"
#include "libs/model/model_config.h"

namespace atelier {
namespace {

template <typename T>
absl::Status InRange(absl::string_view field, T value, T min, T max) {
  if (value >= min && value <= max) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat(field, "=", value, " must be from ", min, " to ", max));
}

absl::Status IntInRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  return InRange<int64_t>(field, value, min, max);
}

absl::Status MatrixFits(absl::string_view what, int64_t rows, int64_t columns) {
  if (rows * columns <= kMaxMatrixElements) return absl::OkStatus();  // both are range-checked
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of ", rows, " x ", columns, " elements exceeds ", kMaxMatrixElements));
}

absl::Status ValidateAttention(const AttentionConfig& attention, int hidden_size) {
  ATELIER_RETURN_IF_ERROR(IntInRange("num_attention_heads", attention.num_heads, 1, kMaxHeads));
  ATELIER_RETURN_IF_ERROR(
      IntInRange("num_key_value_heads", attention.num_kv_heads, 1, attention.num_heads));
  ATELIER_RETURN_IF_ERROR(IntInRange("head_dim", attention.head_dim, 1, kMaxHeadDim));
  ATELIER_RETURN_IF_ERROR(IntInRange("rotary_dim", attention.rotary_dim, 2, attention.head_dim));
  ATELIER_RETURN_IF_ERROR(InRange("rope_theta", attention.rope_theta, 1.0, 1e15));
  if (attention.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rotary_dim=", attention.rotary_dim,
                                                   " (head_dim=", attention.head_dim,
                                                   " x partial_rotary_factor) must be even"));
  }
  if (attention.num_heads % attention.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_attention_heads=", attention.num_heads,
                     " must be a multiple of num_key_value_heads=", attention.num_kv_heads));
  }
  return MatrixFits("q_proj", int64_t{attention.num_heads} * attention.head_dim, hidden_size);
}

absl::Status ValidateGroups(const MoeConfig& moe) {
  ATELIER_RETURN_IF_ERROR(IntInRange("n_group", moe.num_groups, 1, moe.num_experts));
  ATELIER_RETURN_IF_ERROR(IntInRange("topk_group", moe.top_k_groups, 1, moe.num_groups));
  if (moe.num_groups == 1) return absl::OkStatus();
  // A group is judged by its two best experts.
  const int group_size = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || group_size < 2) {
    return absl::InvalidArgumentError(absl::StrCat("n_group=", moe.num_groups,
                                                   " must cut num_experts=", moe.num_experts,
                                                   " into equal groups of two or more"));
  }
  if (moe.top_k > moe.top_k_groups * group_size) {
    return absl::InvalidArgumentError(absl::StrCat("num_experts_per_tok=", moe.top_k,
                                                   " exceeds topk_group=", moe.top_k_groups,
                                                   " groups of ", group_size));
  }
  return absl::OkStatus();
}

absl::Status ValidateActivation(const MoeConfig& moe) {
  if (!(moe.activation.limit > 0) || !std::isfinite(moe.activation.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("swiglu_limit=", moe.activation.limit,
                     " must be above 0 and swiglu_alpha=", moe.activation.alpha, " finite"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMoe(const MoeConfig& moe, int hidden_size) {
  ATELIER_RETURN_IF_ERROR(IntInRange("num_experts", moe.num_experts, 1, kMaxExperts));
  ATELIER_RETURN_IF_ERROR(IntInRange("num_experts_per_tok", moe.top_k, 1, moe.num_experts));
  ATELIER_RETURN_IF_ERROR(
      IntInRange("moe_intermediate_size", moe.intermediate_size, 1, kMaxIntermediateSize));
  ATELIER_RETURN_IF_ERROR(
      IntInRange("shared expert's width", moe.shared_intermediate_size, 0, kMaxIntermediateSize));
  ATELIER_RETURN_IF_ERROR(InRange("routed_scaling_factor", moe.routed_scaling_factor, 1e-6, 1e6));
  ATELIER_RETURN_IF_ERROR(InRange("normalize_epsilon", moe.normalize_epsilon, 0.0, 1.0));
  ATELIER_RETURN_IF_ERROR(ValidateActivation(moe));
  // Gate and up are computed as one matrix.
  ATELIER_RETURN_IF_ERROR(
      MatrixFits("an expert's gate and up", int64_t{2} * moe.intermediate_size, hidden_size));
  return MatrixFits("the shared expert's gate and up", int64_t{2} * moe.shared_intermediate_size,
                    hidden_size);
}

// What the frontend computes.
absl::Status ValidateForFrontend(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  ATELIER_RETURN_IF_ERROR(ValidateAttention(config.attention, config.hidden_size));
  if (moe.num_experts == 0) return absl::OkStatus();
  if (moe.num_groups > 1 && moe.scoring != RouterScoring::kSigmoid) {
    return absl::UnimplementedError(absl::StrCat(
        "n_group=", moe.num_groups, " with softmax scoring is not supported by this build"));
  }
  ATELIER_RETURN_IF_ERROR(ValidateGroups(moe));
  if (moe.activation.IsSwiGlu() && !moe.expert_bias) return absl::OkStatus();
  if (moe.shared_intermediate_size == 0 && config.num_moe_layers() == config.num_layers) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "swiglu_limit, swiglu_alpha, hidden_act=swigluoai and mlp_bias are not supported by this "
      "build for models with dense layers or shared experts");
}

}  // namespace

absl::Status ModelConfig::Validate() const {
  ATELIER_RETURN_IF_ERROR(IntInRange("hidden_size", hidden_size, 1, kMaxHiddenSize));
  ATELIER_RETURN_IF_ERROR(IntInRange("num_hidden_layers", num_layers, 1, kMaxLayers));
  ATELIER_RETURN_IF_ERROR(IntInRange("vocab_size", vocab_size, 1, kMaxVocabSize));
  ATELIER_RETURN_IF_ERROR(
      IntInRange("max_position_embeddings", max_position_embeddings, 1, kMaxPositions));
  ATELIER_RETURN_IF_ERROR(InRange("rms_norm_eps", rms_norm_eps, 1e-30, 1.0));
  if (is_moe_layer.size() != static_cast<size_t>(num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat("is_moe_layer has ", is_moe_layer.size(),
                                                   " entries for num_hidden_layers=", num_layers));
  }
  const int min_dense = num_moe_layers() < num_layers ? 1 : 0;
  ATELIER_RETURN_IF_ERROR(
      IntInRange("intermediate_size", dense_intermediate_size, min_dense, kMaxIntermediateSize));
  ATELIER_RETURN_IF_ERROR(MatrixFits("embed_tokens", vocab_size, hidden_size));
  ATELIER_RETURN_IF_ERROR(
      MatrixFits("the dense gate and up", int64_t{2} * dense_intermediate_size, hidden_size));
  for (int64_t id : eos_token_ids) {
    ATELIER_RETURN_IF_ERROR(IntInRange("eos_token_id", id, 0, INT32_MAX));
  }
  ATELIER_RETURN_IF_ERROR(IntInRange("bos_token_id", bos_token_id, -1, INT32_MAX));
  ATELIER_RETURN_IF_ERROR(IntInRange("pad_token_id", pad_token_id, -1, INT32_MAX));
  if (beyond_frontend.empty()) ATELIER_RETURN_IF_ERROR(ValidateForFrontend(*this));
  if (moe.num_experts == 0 && num_moe_layers() == 0) return absl::OkStatus();
  return ValidateMoe(moe, hidden_size);
}

}  // namespace atelier
