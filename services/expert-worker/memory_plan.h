#pragma once

#include <cstdint>
#include <vector>

#include "libs/checkpoint/checkpoint.h"
#include "libs/model/expert_set.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// Packed bytes of the plan's `index`-th layer, without those of skipped experts.
int64_t HeldLayerBytes(const ShardPlan& plan, const ExpertSet& skipped, size_t index);
// Of all its layers, biases included.
int64_t HeldBytes(const ShardPlan& plan, const ExpertSet& skipped, const ModelConfig& config);

// What a worker takes of its node's memory, in bytes. A plain value.
struct WorkerMemoryPlan {
  int64_t weights = 0;  // exact
  int64_t process = 0;  // about: program, libraries, headers, what is remembered of each tensor
  int64_t batch = 0;    // at most, once a batch of the largest size was computed

  int64_t Resident() const { return weights + process; }  // from the start, weights in memory
  int64_t Most() const { return Resident() + batch; }
};

// Of a worker that holds `plans`, whose calls and merged batches have at most max_batch_tokens
// rows. Reserved huge pages may round each layer up to 2 MiB; memory shared with clients comes on
// top as far as they use it.
WorkerMemoryPlan PlanWorkerMemory(const Checkpoint& checkpoint, const std::vector<ShardPlan>& plans,
                                  const ExpertSet& skipped, int max_batch_tokens);

// What any process remembers of a checkpoint that it has open.
int64_t HeaderMemory(const Checkpoint& checkpoint);

}  // namespace atelier
