#pragma once

#include <cstdint>
#include <vector>

#include "libs/model/shard.h"
#include "services/expert-worker/layer_batch.h"

namespace atelier {

// What a batch costs, all shards together.
struct BatchLoad {
  int64_t expert_rows = 0;        // (token, expert) pairs computed
  int64_t activated_experts = 0;  // whose weights are read
  int64_t weight_bytes = 0;       // packed bytes of those
};

// Counts it from the routing alone, so the executor's loops stay free of it. Not thread-safe;
// reuses its memory.
class LoadCounter {
 public:
  // expert_bytes: packed bytes of one expert of each shard, the mean of its layers.
  LoadCounter(std::vector<ShardSpec> shards, std::vector<int64_t> expert_bytes, int num_experts);

  // REQUIRES: a validated batch.
  BatchLoad Count(const LayerBatch& batch);

 private:
  std::vector<ShardSpec> shards_;
  std::vector<int64_t> expert_bytes_;
  std::vector<int64_t> rows_of_expert_;
};

}  // namespace atelier
