#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier {

// The biases of one routed expert, as floats: gate and up [I], down [H]. All empty where the model
// has none (MoeConfig::expert_bias).
struct ExpertBiases {
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> down;
};

// Errors as Checkpoint::Require. REQUIRES: a layer with experts, and an expert of the model.
absl::StatusOr<ExpertBiases> FindExpertBiases(const Checkpoint& checkpoint, int layer, int expert);
// The tensors that it reads, which may not have been fetched.
absl::StatusOr<std::vector<TensorView>> FindExpertBiasTensors(const Checkpoint& checkpoint,
                                                              int layer, int expert);

}  // namespace atelier
