#include "libs/checkpoint/gguf_names.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "libs/checkpoint/tensor_list.h"

namespace atelier {
namespace {

struct NameRow {
  absl::string_view gguf;
  absl::string_view published;
};

constexpr NameRow kGlobal[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Behind "blk.N." and "model.layers.N.". Models have one of the two names of the second norm.
constexpr NameRow kOfLayer[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj"},
    {"ffn_up_exps.weight", "mlp.experts.up_proj"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

// Cuts "N." off.
std::optional<int> ConsumeNumber(absl::string_view& name) {
  const size_t dot = name.find('.');
  int number = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &number) ||
      number < 0 || absl::StrCat(number) != name.substr(0, dot)) {
    return std::nullopt;
  }
  name.remove_prefix(dot + 1);
  return number;
}

// "ffn_gate.7.weight": what the first files of such models had.
std::optional<std::string> ExpertAlone(absl::string_view name) {
  for (const absl::string_view part : {"gate", "up", "down"}) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, absl::StrCat("ffn_", part, "."))) continue;
    const std::optional<int> expert = ConsumeNumber(rest);
    if (!expert || rest != "weight") return std::nullopt;
    return absl::StrCat("mlp.experts.", *expert, ".", part, "_proj.weight");
  }
  return std::nullopt;
}

// Cuts "blk.N." off.
std::optional<int> ConsumeLayer(absl::string_view& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "blk.")) return std::nullopt;
  const std::optional<int> layer = ConsumeNumber(rest);
  if (layer) name = rest;
  return layer;
}

}  // namespace

std::optional<int> GgufLayer(absl::string_view gguf_name) { return ConsumeLayer(gguf_name); }

std::optional<std::string> PublishedName(absl::string_view gguf_name) {
  for (const NameRow& row : kGlobal) {
    if (row.gguf == gguf_name) return std::string(row.published);
  }
  const std::optional<int> layer = ConsumeLayer(gguf_name);
  if (!layer) return std::nullopt;
  for (const NameRow& row : kOfLayer) {
    if (row.gguf == gguf_name) return absl::StrCat(LayerPrefix(*layer), row.published);
  }
  const std::optional<std::string> alone = ExpertAlone(gguf_name);
  if (!alone) return std::nullopt;
  return absl::StrCat(LayerPrefix(*layer), *alone);
}

}  // namespace atelier
