#include "libs/checkpoint/expert_biases.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/float_element.h"
#include "libs/checkpoint/tensor_list.h"

namespace atelier {
namespace {

// Elements of a tensor: `count` of them from `first` on, `step` apart.
struct Part {
  int first = 0;
  int count = 0;
  int step = 1;
};

absl::StatusOr<std::vector<float>> Read(const Checkpoint& checkpoint, const PromisedTensor& tensor,
                                        const Part& part) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Require(tensor.name, tensor.shape));
  std::vector<float> values(static_cast<size_t>(part.count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FloatElement(view.dtype, view.data.data(),
                             static_cast<size_t>(part.first) + i * static_cast<size_t>(part.step));
  }
  return values;
}

// All experts' biases of gate and up in one tensor [E, 2I].
absl::Status ReadTogether(const Checkpoint& checkpoint, const PromisedTensor& tensor, int expert,
                          ExpertBiases& biases) {
  const MoeConfig& moe = checkpoint.config().moe;
  const int inner = moe.intermediate_size, first = 2 * expert * inner;
  const int step = moe.gate_up_alternate ? 2 : 1;
  ATELIER_ASSIGN_OR_RETURN(biases.gate, Read(checkpoint, tensor, {first, inner, step}));
  const int up = first + (moe.gate_up_alternate ? 1 : inner);
  ATELIER_ASSIGN_OR_RETURN(biases.up, Read(checkpoint, tensor, {up, inner, step}));
  return absl::OkStatus();
}

std::string ExpertsPrefix(int layer) { return absl::StrCat(LayerPrefix(layer), "mlp.experts."); }

// The tensors that hold an expert's biases, in the form that the checkpoint has.
struct BiasTensors {
  bool of_all_experts = false;           // [E, …]
  std::vector<PromisedTensor> promised;  // gate, up, down, or gate and up together, down
};

BiasTensors PromisedBiases(const Checkpoint& checkpoint, int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  const std::vector<PromisedTensor> fused = ExpertTensorsFused(config, layer);
  const std::string gate = ExpertsPrefix(layer) + "gate_proj_bias";
  if (checkpoint.Find(gate).ok()) {
    const std::vector<int64_t> shape = {config.moe.num_experts, config.moe.intermediate_size};
    return {true, {{gate, shape}, {ExpertsPrefix(layer) + "up_proj_bias", shape}, fused[3]}};
  }
  if (checkpoint.Find(fused[2].name).ok() || checkpoint.Find(fused[3].name).ok()) {
    return {true, {fused[2], fused[3]}};
  }
  std::vector<PromisedTensor> alone = ExpertTensorsAlone(config, layer, expert);
  alone.erase(alone.begin(), alone.begin() + 3);
  return {false, std::move(alone)};
}

}  // namespace

absl::StatusOr<std::vector<TensorView>> FindExpertBiasTensors(const Checkpoint& checkpoint,
                                                              int layer, int expert) {
  std::vector<TensorView> tensors;
  if (!checkpoint.config().moe.expert_bias) return tensors;
  for (const PromisedTensor& tensor : PromisedBiases(checkpoint, layer, expert).promised) {
    ATELIER_ASSIGN_OR_RETURN(tensors.emplace_back(), checkpoint.Require(tensor.name, tensor.shape));
  }
  return tensors;
}

absl::StatusOr<ExpertBiases> FindExpertBiases(const Checkpoint& checkpoint, int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  ExpertBiases biases;
  if (!config.moe.expert_bias) return biases;
  const auto [of_all, tensors] = PromisedBiases(checkpoint, layer, expert);
  const int inner = config.moe.intermediate_size, hidden = config.hidden_size;
  const int index = of_all ? expert : 0;
  if (tensors.size() == 2) {
    ATELIER_RETURN_IF_ERROR(ReadTogether(checkpoint, tensors[0], expert, biases));
  } else {
    const Part part{index * inner, inner};
    ATELIER_ASSIGN_OR_RETURN(biases.gate, Read(checkpoint, tensors[0], part));
    ATELIER_ASSIGN_OR_RETURN(biases.up, Read(checkpoint, tensors[1], part));
  }
  ATELIER_ASSIGN_OR_RETURN(biases.down, Read(checkpoint, tensors.back(), {index * hidden, hidden}));
  return biases;
}

}  // namespace atelier
