#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/model/model_config.h"

namespace atelier {

// How often each expert was chosen: [layer of the model][expert]; empty for layers without experts.
using ExpertLoads = std::vector<std::vector<double>>;

// {"expert_loads": {"LAYER": [a number of at least 0 for each expert], …}} with all layers that
// have experts. INVALID_ARGUMENT naming `file` and what of it is wrong.
absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view text, absl::string_view file,
                                             const ModelConfig& config);

// The part of all batches of `batch` tokens in which each expert of a layer is needed, so that its
// weights are read. `counts` empty or all 0 = all experts are chosen alike.
std::vector<double> ActivationRates(const std::vector<double>& counts, const MoeConfig& moe,
                                    int batch);

}  // namespace atelier
