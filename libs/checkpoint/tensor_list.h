#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/model_config.h"

namespace atelier {

// A tensor that a checkpoint of some config must have, under its published name.
struct PromisedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// "model.layers.3."
std::string LayerPrefix(int layer);
// The layer that a published name belongs to, or -1.
int LayerOf(absl::string_view name);

// All that is not a routed expert.
std::vector<PromisedTensor> FrontendTensors(const ModelConfig& config);

// One routed expert, under the names that hold it alone: gate, up, down, then their biases if the
// model has them.
std::vector<PromisedTensor> ExpertTensorsAlone(const ModelConfig& config, int layer, int expert);
// All routed experts of a layer, under the names of the variant that holds them together: gate and
// up in one tensor [E, 2I, H] (gate's rows first), down [E, H, I], then their biases if the model
// has them: [E, 2I], [E, H].
std::vector<PromisedTensor> ExpertTensorsFused(const ModelConfig& config, int layer);

}  // namespace atelier
