#include "services/expert-worker/memory_plan.h"

#include <algorithm>

#include "libs/kernels/pack.h"
#include "services/expert-worker/expert_activation.h"

namespace atelier {
namespace {

// Of a worker that holds nothing, as measured: libraries and program 19 MiB, heap 6 MiB.
constexpr int64_t kProgramBytes = int64_t{25} << 20;
// A request's rows in bf16, as they come and merged; sums in fp32, as computed and as they go.
constexpr int64_t kWireBytesPerValue = 2 + 2 + 4 + 4;

// Rows at one shard, of all tokens: at their experts they are copied, prepared, and taken through
// the intermediate dimension.
int64_t BatchBytes(const ShardPlan& plan, int top_k, int64_t tokens) {
  const int64_t routed = tokens * std::min(top_k, plan.num_experts());
  int64_t most = 0;
  for (const ExpertMethods& methods : plan.methods) {
    const auto row = static_cast<int64_t>(ActivationRowBytes(methods.gate, plan.hidden_size));
    const auto inner = static_cast<int64_t>(ActivationRowBytes(methods.down, plan.columns.size()));
    const int64_t floats = static_cast<int64_t>(sizeof(float)) * plan.columns.size();
    most = std::max(most, routed * (row + inner + floats) + tokens * row);
  }
  return most;
}

}  // namespace

int64_t HeldLayerBytes(const ShardPlan& plan, const ExpertSet& skipped, size_t index) {
  const int held = plan.num_experts() - skipped.Count(plan.spec.layers[index],
                                                      plan.spec.expert_begin, plan.spec.expert_end);
  return plan.layer_bytes[index] / plan.num_experts() * held;
}

int64_t HeldBytes(const ShardPlan& plan, const ExpertSet& skipped, const ModelConfig& config) {
  int64_t bytes = BiasBytes(plan, config) * plan.num_layers();
  for (size_t i = 0; i < plan.spec.layers.size(); ++i) bytes += HeldLayerBytes(plan, skipped, i);
  return bytes;
}

WorkerMemoryPlan PlanWorkerMemory(const Checkpoint& checkpoint, const std::vector<ShardPlan>& plans,
                                  const ExpertSet& skipped, int max_batch_tokens) {
  const ModelConfig& config = checkpoint.config();
  WorkerMemoryPlan memory;
  memory.process = kProgramBytes + HeaderMemory(checkpoint);
  const int64_t values = int64_t{max_batch_tokens} * config.hidden_size;
  for (const ShardPlan& plan : plans) {
    memory.weights += HeldBytes(plan, skipped, config);
    memory.batch += BatchBytes(plan, config.moe.top_k, max_batch_tokens);
  }
  memory.batch += values * kWireBytesPerValue;
  return memory;
}

int64_t HeaderMemory(const Checkpoint& checkpoint) {
  // Name, shape and place of a tensor, and where it is found by name: as measured.
  constexpr int64_t kBytesPerTensor = 440;
  int64_t bytes = kBytesPerTensor * static_cast<int64_t>(checkpoint.TensorNames().size());
  for (const CheckpointFile& file : checkpoint.Files()) {
    bytes += static_cast<int64_t>(file.data_begin);
  }
  return bytes;
}

}  // namespace atelier
