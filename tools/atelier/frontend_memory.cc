#include "tools/atelier/frontend_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "services/expert-worker/memory_plan.h"
#include "services/gpu-frontend/graph/memory_plan.h"
#include "services/gpu-frontend/options.h"

namespace atelier {

absl::StatusOr<FrontendMemory> PlanFrontendMemory(const Checkpoint& checkpoint, int64_t memory,
                                                  int64_t gpu_experts) {
  const ModelConfig& config = checkpoint.config();
  const FrontendOptions defaults;
  FrontendMemory plan;
  plan.weights = WeightBytes(config);
  plan.process = kFrontendProgramBytes + HeaderMemory(checkpoint);
  plan.gpu_experts = gpu_experts;
  // Of sequences as long as the model allows; a smaller cache makes them, and this, smaller.
  plan.workspace = WorkspaceBytes(
      config,
      {defaults.chunked_prefill_size + defaults.max_running_requests, defaults.max_running_requests,
       CeilDiv(config.max_position_embeddings, defaults.page_size), gpu_experts > 0});
  plan.kv_bytes_per_token = KvBytesPerToken(config);
  const int64_t page_bytes = plan.kv_bytes_per_token * defaults.page_size;
  const int64_t left =
      memory == 0 ? defaults.kv_cache_bytes : memory - plan.Resident() - plan.workspace;
  if (left < page_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--frontend-memory=", memory, ": the frontend takes ",
                     plan.Resident() + plan.workspace, " bytes (weights ", plan.weights, ", steps ",
                     plan.workspace, ", the rest ", plan.process + plan.gpu_experts, ") and each ",
                     defaults.page_size, " tokens of its KV cache ", page_bytes));
  }
  plan.kv_cache = left / page_bytes * page_bytes;
  plan.kv_tokens = plan.kv_cache / plan.kv_bytes_per_token;
  return plan;
}

}  // namespace atelier
