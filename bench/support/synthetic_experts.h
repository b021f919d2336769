#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {

// One MoE layer as published models have it.
struct LayerShape {
  int num_experts = 0;
  int hidden = 0;
  int inner = 0;
  int top_k = 0;

  // Multiply-adds of one row at one expert: the number of its weights.
  double weights() const { return 3.0 * hidden * inner; }
  std::string Name() const;  // "E128 H2048 I768 k8"
};

// Packed bytes of one expert. INVALID_ARGUMENT when the method cannot hold the shape.
absl::StatusOr<size_t> PackedExpertBytes(Method method, const LayerShape& shape);

// Experts of random packed bytes (finite values in every coding), in memory of the arena's node as
// a worker keeps them. As many distinct ones as `budget_bytes` hold, over as many layers as that
// makes; where they are fewer than num_experts, several ids share one. Distinct ones lie far enough
// apart in use that none is found in a cache. RESOURCE_EXHAUSTED when the memory is not there.
class SyntheticExperts final : public ExpertStore {
 public:
  static absl::StatusOr<std::unique_ptr<SyntheticExperts>> Create(Method method,
                                                                  const LayerShape& shape,
                                                                  size_t budget_bytes,
                                                                  NodeArena& arena);

  const std::vector<ShardSpec>& shards() const override { return shards_; }
  Method method() const override { return method_; }
  int hidden_size() const override { return shape_.hidden; }
  int num_experts() const override { return shape_.num_experts; }
  bool HoldsLayer(int, int layer) const override { return layer < num_layers_; }
  const ExpertView& expert(int shard, int layer, int expert) const override;
  int64_t bytes() const override { return static_cast<int64_t>(memory_->size()); }

  int num_layers() const { return num_layers_; }
  size_t num_distinct() const { return experts_.size(); }
  const ExpertView& distinct(size_t i) const { return experts_[i % experts_.size()]; }

 private:
  SyntheticExperts(Method method, const LayerShape& shape, std::unique_ptr<NodeMemory> memory)
      : method_(method), shape_(shape), memory_(std::move(memory)) {}
  void PlaceExperts(size_t expert_bytes);

  const Method method_;
  const LayerShape shape_;
  const std::unique_ptr<NodeMemory> memory_;
  int num_layers_ = 1;
  std::vector<ShardSpec> shards_;
  std::vector<ExpertView> experts_;
};

}  // namespace atelier
