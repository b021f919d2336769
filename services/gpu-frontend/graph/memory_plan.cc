#include "services/gpu-frontend/graph/memory_plan.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/float16.h"
#include "libs/checkpoint/tensor_list.h"
#include "services/gpu-frontend/graph/workspace.h"

namespace atelier {
namespace {

int64_t Elements(const PromisedTensor& tensor) {
  int64_t elements = 1;
  for (int64_t dim : tensor.shape) elements *= dim;
  return elements;
}

// Routers, gates and vectors are kept in fp32, matrices in bf16.
int64_t BytesOf(const PromisedTensor& tensor) {
  const bool is_fp32 = tensor.shape.size() == 1 || absl::EndsWith(tensor.name, "gate.weight");
  return Elements(tensor) * static_cast<int64_t>(is_fp32 ? sizeof(float) : sizeof(BFloat16));
}

}  // namespace

absl::Status MemoryPlan::CheckFits(int64_t free_bytes) const {
  if (Total() <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the frontend needs ", Total(), " bytes (weights ", weights, ", KV cache ",
                   kv_cache, ", workspace ", workspace, ") but its device has ", free_bytes,
                   " free: lower --kv-cache-bytes, --chunked-prefill-size or "
                   "--context-length, or name fewer --device-experts"));
}

int64_t WorkspaceBytes(const ModelConfig& config, const StepSizes& sizes) {
  return Workspace::Bytes(
      config, {sizes.max_tokens, sizes.max_sequences, sizes.max_blocks, config.vocab_size,
               sizes.device_experts ? config.moe.intermediate_size : 0});
}

int64_t WeightBytes(const ModelConfig& config) {
  int64_t bytes = 0;
  for (const PromisedTensor& tensor : FrontendTensors(config)) bytes += BytesOf(tensor);
  if (config.tie_word_embeddings) {
    // Row by row for the lookup, and once more in the form that products read.
    bytes +=
        int64_t{config.vocab_size} * config.hidden_size * static_cast<int64_t>(sizeof(BFloat16));
  }
  return bytes;
}

int64_t DeviceExpertBytes(const ModelConfig& config, const ExpertSet& experts) {
  int64_t count = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    count += experts.Count(layer, 0, config.moe.num_experts);
  }
  return count * 3 * config.hidden_size * config.moe.intermediate_size *
         static_cast<int64_t>(sizeof(BFloat16));
}

int64_t KvBytesPerToken(const ModelConfig& config) {
  return int64_t{2} * config.num_layers * config.attention.num_kv_heads *
         config.attention.head_dim * static_cast<int64_t>(sizeof(BFloat16));
}

}  // namespace atelier
