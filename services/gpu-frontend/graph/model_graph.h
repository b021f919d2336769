#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/expert_set.h"
#include "services/gpu-frontend/engine/model_runner.h"

namespace atelier {

class Device;
class RemoteExperts;
struct FrontendMetrics;

struct GraphOptions {
  int64_t kv_cache_bytes = int64_t{1} << 30;  // fixed budget, allocated at start
  int block_size = 16;                        // tokens per KV block, 1 … 256
  int max_context = 0;  // tokens of one sequence; 0 = what the model allows and the KV cache holds
  int max_tokens_per_step =
      2048;  // sizes the workspace; at least the engine's chunk + its running sequences
  int max_sequences = 256;  // in one step
  // Routed experts that the device computes; workers need not hold them.
  ExpertSet device_experts = {};

  absl::Status Validate() const;
};

// The model but for its routed experts, assembled from ModelConfig's properties: loads the
// frontend's tensors onto the device, owns the KV blocks, runs steps. Not thread-safe (the engine's
// thread owns it after Create).
class ModelGraph : public ModelRunner {
 public:
  // Whether Create would find the options fit for the model and the device's free memory: its
  // RESOURCE_EXHAUSTED, INVALID_ARGUMENT and, for device experts of a model that computes them in a
  // way that the device has not, UNIMPLEMENTED, before anything is waited for or allocated.
  static absl::Status CheckFits(const ModelConfig& config, const Device& device,
                                const GraphOptions& options);
  // Verifies every tensor first. RESOURCE_EXHAUSTED names the sizes when weights or KV cache do not
  // fit; INVALID_ARGUMENT names a max_context beyond the model's or beyond what the KV cache holds.
  static absl::StatusOr<std::unique_ptr<ModelGraph>> Create(const Checkpoint& checkpoint,
                                                            Device& device, RemoteExperts& experts,
                                                            const GraphOptions& options,
                                                            Clock& clock, const Logger& logger,
                                                            FrontendMetrics& metrics);
};

}  // namespace atelier
