#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace atelier {

// The name under which this build looks for a tensor of a safetensors file: models give the same
// thing different names ("block_sparse_moe.experts.0.w1" and "mlp.experts.0.gate_proj",
// "shared_expert" and "shared_experts"), and multimodal ones put another prefix in front.
std::string CanonicalName(absl::string_view published);

}  // namespace atelier
