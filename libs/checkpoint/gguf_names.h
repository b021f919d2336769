#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace atelier {

// The Hugging Face name of a GGUF tensor: "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj
// .weight". The experts of a layer in one tensor are "….mlp.experts.gate_proj" (up_proj, down_proj,
// gate_up_proj), their biases "….gate_proj_bias". nullopt for a tensor that this build computes no
// model with.
std::optional<std::string> PublishedName(absl::string_view gguf_name);

// The layer of a "blk.N.…" name; nullopt for others.
std::optional<int> GgufLayer(absl::string_view gguf_name);

}  // namespace atelier
