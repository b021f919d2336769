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

}  // namespace

absl::StatusOr<ExpertBiases> FindExpertBiases(const Checkpoint& checkpoint, int layer, int expert) {
  const ModelConfig& config = checkpoint.config();
  ExpertBiases biases;
  if (!config.moe.expert_bias) return biases;
  const int inner = config.moe.intermediate_size, hidden = config.hidden_size;
  const std::vector<PromisedTensor> fused = ExpertTensorsFused(config, layer);
  if (checkpoint.Find(fused[2].name).ok() || checkpoint.Find(fused[3].name).ok()) {
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
