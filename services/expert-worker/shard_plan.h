#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/model/dtype.h"
#include "libs/model/model_config.h"
#include "libs/model/shard.h"

namespace atelier {

// What one shard takes of a model, before anything is allocated.
struct ShardPlan {
  ShardSpec spec;             // layers filled in
  IntermediateRange columns;  // of the intermediate dimension
  int hidden_size = 0;
  int intermediate_size = 0;    // unsliced
  int64_t bytes_per_layer = 0;  // packed

  int num_experts() const { return spec.expert_end - spec.expert_begin; }
  int64_t num_layers() const { return static_cast<int64_t>(spec.layers.size()); }
  int64_t bytes() const { return bytes_per_layer * num_layers(); }
};

// Where the packed matrices of an expert lie in its block: gate, up and down, each a multiple of 64
// bytes.
struct ExpertBlock {
  size_t gate_bytes = 0;  // up has as many
  size_t down_bytes = 0;
  size_t bytes() const { return 2 * gate_bytes + down_bytes; }
};
ExpertBlock BlockOf(const ShardPlan& plan, Method method);

// INVALID_ARGUMENT naming what the model does not have: the layer, the experts, the slice, or a
// matrix that the kernels cannot take; and for two shards with weights in common.
absl::StatusOr<std::vector<ShardPlan>> PlanShards(const ModelConfig& config,
                                                  const std::vector<ShardSpec>& shards,
                                                  Method method);

}  // namespace atelier
