#include "libs/checkpoint/expert_biases.h"

#include "libs/base/status_macros.h"
#include "libs/checkpoint/float_element.h"
#include "libs/checkpoint/tensor_list.h"

namespace atelier {
namespace {

absl::StatusOr<std::vector<float>> Read(const Checkpoint& checkpoint, const PromisedTensor& tensor,
                                        int first, int count) {
  ATELIER_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Require(tensor.name, tensor.shape));
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FloatElement(view.dtype, view.data.data(), static_cast<size_t>(first) + i);
  }
  return values;
}

// Whether the layer's are in the tensors of all experts.
bool AreFused(const Checkpoint& checkpoint, const std::vector<PromisedTensor>& fused) {
  return checkpoint.Find(fused[2].name).ok() || checkpoint.Find(fused[3].name).ok();
}

}  // namespace

absl::StatusOr<std::vector<TensorView>> FindExpertBiasTensors(const Checkpoint& checkpoint,
                                                              int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  std::vector<TensorView> tensors;
  if (!config.moe.expert_bias) return tensors;
  std::vector<PromisedTensor> promised = ExpertTensorsFused(config, layer);
  const bool fused = AreFused(checkpoint, promised);
  if (!fused) promised = ExpertTensorsAlone(config, layer, expert);
  for (size_t i = fused ? 2 : 3; i < promised.size(); ++i) {
    ATELIER_ASSIGN_OR_RETURN(tensors.emplace_back(),
                             checkpoint.Require(promised[i].name, promised[i].shape));
  }
  return tensors;
}

absl::StatusOr<ExpertBiases> FindExpertBiases(const Checkpoint& checkpoint, int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  ExpertBiases biases;
  if (!config.moe.expert_bias) return biases;
  const int inner = config.moe.intermediate_size, hidden = config.hidden_size;
  const std::vector<PromisedTensor> fused = ExpertTensorsFused(config, layer);
  if (AreFused(checkpoint, fused)) {
    const int gate = 2 * expert * inner;
    ATELIER_ASSIGN_OR_RETURN(biases.gate, Read(checkpoint, fused[2], gate, inner));
    ATELIER_ASSIGN_OR_RETURN(biases.up, Read(checkpoint, fused[2], gate + inner, inner));
    ATELIER_ASSIGN_OR_RETURN(biases.down, Read(checkpoint, fused[3], expert * hidden, hidden));
    return biases;
  }
  const std::vector<PromisedTensor> alone = ExpertTensorsAlone(config, layer, expert);
  ATELIER_ASSIGN_OR_RETURN(biases.gate, Read(checkpoint, alone[3], 0, inner));
  ATELIER_ASSIGN_OR_RETURN(biases.up, Read(checkpoint, alone[4], 0, inner));
  ATELIER_ASSIGN_OR_RETURN(biases.down, Read(checkpoint, alone[5], 0, hidden));
  return biases;
}

}  // namespace atelier
