#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "libs/model/expert_set.h"
#include "libs/model/model_config.h"

namespace atelier {

// What the frontend is about to allocate on its device, in bytes.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t kv_cache = 0;
  int64_t workspace = 0;

  int64_t Total() const { return weights + kv_cache + workspace; }
  // RESOURCE_EXHAUSTED names every part, what is free, and which options to lower. Asked before the
  // first byte is allocated: an operating system that overcommits would only say no by killing the
  // process, minutes later.
  absl::Status CheckFits(int64_t free_bytes) const;
};

// What a process takes beside that: program, libraries, buffers of the API, and a tokenizer of
// usual size. About.
inline constexpr int64_t kFrontendProgramBytes = int64_t{33} << 20;

// Bytes of what the device keeps for steps of at most so many tokens (the engine's chunk and its
// running sequences), of sequences that each have at most so many blocks of the KV cache.
struct StepSizes {
  int max_tokens = 0;
  int max_sequences = 0;
  int max_blocks = 0;
  bool device_experts = false;  // routed experts on the device
};
int64_t WorkspaceBytes(const ModelConfig& config, const StepSizes& sizes);

// Bytes of all tensors but the routed experts, as the graph keeps them on the device.
int64_t WeightBytes(const ModelConfig& config);
// And of so many routed experts.
int64_t DeviceExpertBytes(const ModelConfig& config, const ExpertSet& experts);

// Bytes that one token's keys and values take in all layers.
int64_t KvBytesPerToken(const ModelConfig& config);

}  // namespace atelier
