#include "services/gpu-frontend/graph/workspace.h"

#include <algorithm>
#include <vector>

#include "libs/base/float16.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

struct Wanted {
  std::unique_ptr<DeviceBuffer>* buffer;
  MemoryKind kind;
  size_t bytes;
};

size_t WidestFfn(const ModelConfig& config, const StepLimits& limits) {
  return static_cast<size_t>(
      std::max({config.dense_intermediate_size, config.moe.shared_intermediate_size,
                limits.device_expert_width}));
}

std::vector<Wanted> Activations(Workspace& space, const ModelConfig& config,
                                const StepLimits& limits) {
  const size_t rows = static_cast<size_t>(limits.max_tokens);
  const AttentionConfig& attention = config.attention;
  const size_t hidden = static_cast<size_t>(config.hidden_size);
  const size_t heads = static_cast<size_t>(attention.num_heads),
               kv_heads = static_cast<size_t>(attention.num_kv_heads);
  const size_t head_dim = static_cast<size_t>(attention.head_dim);
  const size_t logit_rows = Workspace::kLogitRows;
  const auto floats = [](std::unique_ptr<DeviceBuffer>& buffer, size_t count) {
    return Wanted{&buffer, MemoryKind::kDevice, count * sizeof(float)};
  };
  return {floats(space.residual, rows * hidden),
          floats(space.normed, rows * hidden),
          floats(space.block_out, rows * hidden),
          floats(space.qkv, rows * (heads + 2 * kv_heads) * head_dim),
          floats(space.attended, rows * heads * head_dim),
          floats(space.cos_sin, rows * static_cast<size_t>(attention.rotary_dim)),
          floats(space.gate_up, rows * 2 * WidestFfn(config, limits)),
          floats(space.activated, rows * WidestFfn(config, limits)),
          floats(space.logits, logit_rows * static_cast<size_t>(config.vocab_size)),
          floats(space.last_rows, logit_rows * hidden)};
}

std::vector<Wanted> Routed(Workspace& space, const ModelConfig& config, size_t rows) {
  const size_t choices = rows * static_cast<size_t>(config.moe.top_k);
  const size_t values = rows * static_cast<size_t>(config.hidden_size);
  const size_t scores = rows * static_cast<size_t>(config.moe.num_experts);
  const size_t gates = config.moe.shared_gate ? rows : 0;
  return {{&space.router_logits, MemoryKind::kDevice, scores * sizeof(float)},
          {&space.shared_gate, MemoryKind::kDevice, gates * sizeof(float)},
          {&space.expert_ids, MemoryKind::kDevice, choices * sizeof(int32_t)},
          {&space.expert_weights, MemoryKind::kDevice, choices * sizeof(float)},
          {&space.wire_rows, MemoryKind::kDevice, values * sizeof(BFloat16)},
          {&space.routed, MemoryKind::kDevice, values * sizeof(float)},
          {&space.h_expert_ids, MemoryKind::kPinnedHost, choices * sizeof(int32_t)},
          {&space.h_expert_weights, MemoryKind::kPinnedHost, choices * sizeof(float)},
          {&space.h_wire_rows, MemoryKind::kPinnedHost, values * sizeof(BFloat16)},
          {&space.h_routed, MemoryKind::kPinnedHost, values * sizeof(float)}};
}

std::vector<Wanted> DeviceExperts(Workspace& space, const ModelConfig& config,
                                  const StepLimits& limits) {
  if (limits.device_expert_width == 0) return {};
  const size_t rows = static_cast<size_t>(limits.max_tokens);
  const size_t choices = rows * static_cast<size_t>(config.moe.top_k);
  const size_t values = rows * static_cast<size_t>(config.hidden_size);
  return {{&space.device_rows, MemoryKind::kDevice, values * sizeof(float)},
          {&space.device_out, MemoryKind::kDevice, values * sizeof(float)},
          {&space.h_device_indices, MemoryKind::kPinnedHost, choices * sizeof(int32_t)},
          {&space.device_indices, MemoryKind::kDevice, choices * sizeof(int32_t)},
          {&space.h_device_weights, MemoryKind::kPinnedHost, choices * sizeof(float)},
          {&space.device_weights, MemoryKind::kDevice, choices * sizeof(float)}};
}

std::vector<Wanted> StepInputs(Workspace& space, const StepLimits& limits) {
  const size_t rows = static_cast<size_t>(limits.max_tokens);
  const size_t table =
      static_cast<size_t>(limits.max_sequences) * static_cast<size_t>(limits.max_blocks);
  std::vector<Wanted> wanted;
  const auto both = [&](std::unique_ptr<DeviceBuffer>& host, std::unique_ptr<DeviceBuffer>& device,
                        size_t bytes) {
    wanted.push_back({&host, MemoryKind::kPinnedHost, bytes});
    wanted.push_back({&device, MemoryKind::kDevice, bytes});
  };
  both(space.h_tokens, space.tokens, rows * sizeof(int32_t));
  both(space.h_positions, space.positions, rows * sizeof(int32_t));
  both(space.h_sequences, space.sequences, rows * sizeof(int32_t));
  both(space.h_slots, space.slots, rows * sizeof(int64_t));
  both(space.h_block_tables, space.block_tables, table * sizeof(int32_t));
  both(space.h_logit_rows, space.logit_rows, rows * sizeof(int32_t));
  return wanted;
}

std::vector<Wanted> All(Workspace& space, const ModelConfig& config, const StepLimits& limits) {
  const size_t rows = static_cast<size_t>(limits.max_tokens);
  std::vector<Wanted> all = Activations(space, config, limits);
  for (const std::vector<Wanted>& more :
       {Routed(space, config, rows), DeviceExperts(space, config, limits),
        StepInputs(space, limits)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace

int64_t Workspace::Bytes(const ModelConfig& config, const StepLimits& limits) {
  Workspace unallocated;
  int64_t bytes = 0;
  for (const Wanted& wanted : All(unallocated, config, limits)) {
    bytes += static_cast<int64_t>(wanted.bytes);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Workspace>> Workspace::Create(Device& device,
                                                             const ModelConfig& config,
                                                             const StepLimits& limits) {
  auto space = std::make_unique<Workspace>();
  for (const Wanted& wanted : All(*space, config, limits)) {
    ATELIER_ASSIGN_OR_RETURN(*wanted.buffer, device.Allocate(wanted.kind, wanted.bytes));
  }
  return space;
}

}  // namespace atelier
