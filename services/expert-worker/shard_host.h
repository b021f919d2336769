#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/model/shard.h"
#include "services/expert-worker/executor.h"

namespace atelier {

// What a worker holds at one time, and what computes it. A plain value.
struct HeldShards {
  std::vector<ShardSpec> shards;       // layers named
  std::vector<int64_t> expert_bytes;   // of each shard: mean packed bytes of an expert, for metrics
  std::shared_ptr<Executor> executor;  // of exactly these shards; keeps their weights
};

// Brings shards and lets them go. Each result shares with those before what both hold; what the
// last result leaves out takes memory until the last executor that computes it goes. One thread at
// a time.
class ShardHost {
 public:
  virtual ~ShardHost() = default;

  // What is held and `shards` (no layers = all with experts). INVALID_ARGUMENT for what the model
  // does not have, or what overlaps with what is held without being the same; errors as
  // ExpertStore::Load's.
  virtual absl::StatusOr<HeldShards> Load(const std::vector<ShardSpec>& shards) = 0;
  // What is held without `shards`. INVALID_ARGUMENT for parts of the experts or slice of a shard,
  // FAILED_PRECONDITION when nothing would be left.
  virtual absl::StatusOr<HeldShards> Unload(const std::vector<ShardSpec>& shards) = 0;
};

// Of `held`, what `others` leave of it: shards lose the layers that the same experts and slice have
// there, and go when none is left.
std::vector<ShardSpec> Without(const std::vector<ShardSpec>& held,
                               const std::vector<ShardSpec>& others);

}  // namespace atelier
