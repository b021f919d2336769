#include "services/expert-worker/expert_activation.h"

#include <algorithm>
#include <string>

#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/kernels/pack.h"
#include "services/expert-worker/expert_packing.h"

namespace atelier {
namespace {

size_t Padded(int count) { return RoundUp(static_cast<size_t>(count), size_t{kPanelWidth}); }

// down's bias is added once, and the slices' results are summed: slice 0 has it.
bool HasDownBias(const ShardPlan& plan) { return plan.spec.slice_index == 0; }

size_t BiasFloats(const ShardPlan& plan) {
  return 2 * Padded(plan.columns.size()) + (HasDownBias(plan) ? Padded(plan.hidden_size) : 0);
}

// The part from `begin` on, followed by zeros to a whole panel (the memory is zeroed). Moves `to`
// behind it.
const float* Place(const std::vector<float>& bias, int begin, int count, float*& to) {
  const float* const placed = to;
  std::copy_n(bias.begin() + begin, count, to);
  to += Padded(count);
  return placed;
}

}  // namespace

int64_t BiasBytes(const ShardPlan& plan, const ModelConfig& config) {
  if (!config.moe.expert_bias) return 0;
  return plan.num_experts() * static_cast<int64_t>(BiasFloats(plan) * sizeof(float));
}

absl::StatusOr<std::unique_ptr<NodeMemory>> SetActivations(const Checkpoint& checkpoint, int layer,
                                                           const ShardPlan& plan, NodeArena& arena,
                                                           absl::Span<ExpertView> experts) {
  const MoeConfig& moe = checkpoint.config().moe;
  for (ExpertView& expert : experts) expert.activation = moe.activation;
  std::unique_ptr<NodeMemory> memory;
  if (!moe.expert_bias) return memory;
  const auto bytes = static_cast<size_t>(BiasBytes(plan, checkpoint.config()));
  ATELIER_ASSIGN_OR_RETURN(memory, arena.Allocate(bytes));
  auto* to = reinterpret_cast<float*>(memory->data());
  const int begin = plan.columns.begin, width = plan.columns.size();
  const std::string fetch_flags = FetchFlags(plan.spec, moe.num_experts);
  for (size_t i = 0; i < experts.size(); ++i) {
    const int expert = plan.spec.expert_begin + static_cast<int>(i);
    ATELIER_ASSIGN_OR_RETURN(const std::vector<TensorView> tensors,
                             FindExpertBiasTensors(checkpoint, layer, expert));
    for (const TensorView& tensor : tensors) {
      ATELIER_RETURN_IF_ERROR(checkpoint.RequireFetched(tensor.data, fetch_flags));
    }
    ATELIER_ASSIGN_OR_RETURN(const ExpertBiases biases,
                             FindExpertBiases(checkpoint, layer, expert));
    experts[i].gate_bias = Place(biases.gate, begin, width, to);
    experts[i].up_bias = Place(biases.up, begin, width, to);
    if (HasDownBias(plan)) experts[i].down_bias = Place(biases.down, 0, plan.hidden_size, to);
  }
  return memory;
}

}  // namespace atelier
