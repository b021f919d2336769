#include "services/expert-worker/load_counter.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"

namespace atelier {

LoadCounter::LoadCounter(std::vector<ShardSpec> shards, std::vector<int64_t> expert_bytes,
                         int num_experts)
    : shards_(std::move(shards)),
      expert_bytes_(std::move(expert_bytes)),
      rows_of_expert_(static_cast<size_t>(num_experts)) {
  ATELIER_CHECK(expert_bytes_.size() == shards_.size());
}

BatchLoad LoadCounter::Count(const LayerBatch& batch) {
  std::fill(rows_of_expert_.begin(), rows_of_expert_.end(), 0);
  const auto routes =
      static_cast<size_t>(batch.routing.num_tokens) * static_cast<size_t>(batch.routing.top_k);
  for (size_t i = 0; i < routes; ++i) {
    const int32_t expert = batch.routing.expert_ids[i];
    if (expert >= 0) ++rows_of_expert_[static_cast<size_t>(expert)];
  }
  BatchLoad load;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const ShardSpec& spec = shards_[shard];
    if (!std::binary_search(spec.layers.begin(), spec.layers.end(), batch.layer)) continue;
    for (int expert = spec.expert_begin; expert < spec.expert_end; ++expert) {
      const int64_t rows = rows_of_expert_[static_cast<size_t>(expert)];
      load.expert_rows += rows;
      load.activated_experts += rows > 0 ? 1 : 0;
      load.weight_bytes += rows > 0 ? expert_bytes_[shard] : 0;
    }
  }
  return load;
}

}  // namespace atelier
