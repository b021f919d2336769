#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "libs/device/device.h"
#include "libs/model/model_config.h"

namespace atelier {

// How large a step can be.
struct StepLimits {
  int max_tokens = 0;  // T
  int max_sequences = 0;
  int max_blocks = 0;           // KV blocks of one sequence
  int vocab_size = 0;           // token ids are below it
  int device_expert_width = 0;  // I of the routed experts, if any is on the device
};

// Intermediate values of one step, allocated once. fp32 [T, …] unless said otherwise; h_ = pinned
// host memory.
struct Workspace {
  static absl::StatusOr<std::unique_ptr<Workspace>> Create(Device& device,
                                                           const ModelConfig& config,
                                                           const StepLimits& limits);
  // What Create allocates.
  static int64_t Bytes(const ModelConfig& config, const StepLimits& limits);

  // Rows of logits computed at once.
  static constexpr int kLogitRows = 16;

  std::unique_ptr<DeviceBuffer> residual;  // [T, H]
  std::unique_ptr<DeviceBuffer> normed;    // [T, H]
  std::unique_ptr<DeviceBuffer>
      block_out;  // [T, H]: attention's, the FFN's or the shared expert's result
  std::unique_ptr<DeviceBuffer> qkv;        // [T, (heads + 2 kv_heads) * head_dim]
  std::unique_ptr<DeviceBuffer> attended;   // [T, heads * head_dim]
  std::unique_ptr<DeviceBuffer> cos_sin;    // [T, rotary_dim]
  std::unique_ptr<DeviceBuffer> gate_up;    // [T, 2 * widest FFN]
  std::unique_ptr<DeviceBuffer> activated;  // [T, widest FFN]
  std::unique_ptr<DeviceBuffer> logits;     // [kLogitRows, vocab]
  std::unique_ptr<DeviceBuffer> last_rows;  // [kLogitRows, H]

  std::unique_ptr<DeviceBuffer> router_logits;   // [T, E]
  std::unique_ptr<DeviceBuffer> shared_gate;     // [T]: logits of the shared expert's gate
  std::unique_ptr<DeviceBuffer> expert_ids;      // [T, k] int32
  std::unique_ptr<DeviceBuffer> expert_weights;  // [T, k]
  std::unique_ptr<DeviceBuffer> wire_rows;       // [T, H] bf16
  std::unique_ptr<DeviceBuffer> routed;          // [T, H]: sum of the routed experts
  // Of the routed experts on the device; nothing where there are none.
  std::unique_ptr<DeviceBuffer> device_rows;  // [T, H]: the rows of one of them
  std::unique_ptr<DeviceBuffer> device_out;   // [T, H]: what it makes of them
  std::unique_ptr<DeviceBuffer> h_device_indices, device_indices;  // [T, k] int32: rows, by expert
  std::unique_ptr<DeviceBuffer> h_device_weights, device_weights;  // [T, k]: theirs

  std::unique_ptr<DeviceBuffer> h_expert_ids;
  std::unique_ptr<DeviceBuffer> h_expert_weights;
  std::unique_ptr<DeviceBuffer> h_wire_rows;
  std::unique_ptr<DeviceBuffer> h_routed;

  // What a step is about, on the host and on the device.
  std::unique_ptr<DeviceBuffer> h_tokens, tokens;              // [T] int32
  std::unique_ptr<DeviceBuffer> h_positions, positions;        // [T] int32
  std::unique_ptr<DeviceBuffer> h_sequences, sequences;        // [T] int32
  std::unique_ptr<DeviceBuffer> h_slots, slots;                // [T] int64
  std::unique_ptr<DeviceBuffer> h_block_tables, block_tables;  // [max_sequences, max_blocks] int32
  std::unique_ptr<DeviceBuffer> h_logit_rows,
      logit_rows;  // [T] int32: rows whose logits are wanted
};

}  // namespace atelier
