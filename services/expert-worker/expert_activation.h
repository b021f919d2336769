#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// Bytes of the biases of one layer of a shard; 0 where the model has none.
int64_t BiasBytes(const ShardPlan& plan, const ModelConfig& config);

// Sets activation and biases of the experts of one layer of a shard ([expert - expert_begin]), and
// returns the memory of the biases, null where there are none. Errors as FindExpertBiases and
// NodeArena::Allocate.
absl::StatusOr<std::unique_ptr<NodeMemory>> SetActivations(const Checkpoint& checkpoint, int layer,
                                                           const ShardPlan& plan, NodeArena& arena,
                                                           absl::Span<ExpertView> experts);

}  // namespace atelier
