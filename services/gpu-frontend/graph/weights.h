#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/device/device.h"
#include "libs/model/expert_set.h"

namespace atelier {

// The frontend's tensors on its device: matrices as bf16, vectors and routers as fp32.

struct AttentionWeights {
  std::unique_ptr<DeviceMatrix> qkv;       // [(heads + 2 kv_heads) * head_dim, H]: q, k, v stacked
  std::unique_ptr<DeviceBuffer> qkv_bias;  // [(heads + 2 kv_heads) * head_dim] or null
  std::unique_ptr<DeviceBuffer> q_norm;    // [head_dim], [heads * head_dim] or null
  std::unique_ptr<DeviceBuffer> k_norm;    // [head_dim], [kv_heads * head_dim] or null
  std::unique_ptr<DeviceMatrix> output;    // [H, heads * head_dim]
  std::unique_ptr<DeviceBuffer> output_bias;  // [H] or null
};

// A dense layer's FFN or a MoE layer's shared expert.
struct FfnWeights {
  std::unique_ptr<DeviceMatrix> gate_up;  // [2 I, H]: gate, then up
  std::unique_ptr<DeviceMatrix> down;     // [H, I]
  int intermediate = 0;                   // I
};

struct RouterWeights {
  std::unique_ptr<DeviceBuffer> weight;           // [E, H] fp32
  std::unique_ptr<DeviceBuffer> correction_bias;  // [E] fp32 or null
};

struct LayerWeights {
  std::unique_ptr<DeviceBuffer> input_norm;           // [H]
  std::unique_ptr<DeviceBuffer> post_attention_norm;  // [H]
  AttentionWeights attention;
  FfnWeights ffn;        // dense FFN, or shared expert; gate_up is null in a MoE layer without one
  RouterWeights router;  // MoE layers only
  std::unique_ptr<DeviceBuffer> shared_gate;  // [1, H] fp32, or null
  // Routed experts on the device, by expert; those of workers have no gate_up. Empty if all have.
  std::vector<FfnWeights> experts;
};

struct ModelWeights {
  std::unique_ptr<DeviceBuffer> embedding;  // [vocab, H] bf16
  std::vector<LayerWeights> layers;
  std::unique_ptr<DeviceBuffer> final_norm;  // [H]
  std::unique_ptr<DeviceMatrix> head;        // [vocab, H]
};

// Loads them layer by layer, with the routed experts that `experts` names, reporting progress.
// Errors as Checkpoint::Require and Device::Allocate.
absl::StatusOr<ModelWeights> LoadModelWeights(const Checkpoint& checkpoint,
                                              const ExpertSet& experts, Device& device,
                                              Clock& clock, const Logger& logger);

}  // namespace atelier
