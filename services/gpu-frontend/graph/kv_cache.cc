#include "services/gpu-frontend/graph/kv_cache.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "services/gpu-frontend/graph/memory_plan.h"

namespace atelier {

absl::StatusOr<int> KvCache::CountBlocks(const ModelConfig& config, int64_t budget_bytes,
                                         int block_size) {
  const int64_t block_bytes = KvBytesPerToken(config) * block_size;
  const int64_t blocks =
      std::min<int64_t>(budget_bytes / block_bytes, std::numeric_limits<int32_t>::max());
  if (blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat("--kv-cache-bytes=", budget_bytes,
                                                     ": holds no block: one of ", block_size,
                                                     " tokens takes ", block_bytes, " bytes"));
  }
  return static_cast<int>(blocks);
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(Device& device, const ModelConfig& config,
                                                         int num_blocks, int block_size) {
  auto cache = std::unique_ptr<KvCache>(new KvCache());
  cache->attention_ = config.attention;
  cache->num_blocks_ = num_blocks;
  cache->block_size_ = block_size;
  const size_t layer_bytes = static_cast<size_t>(KvBytesPerToken(config) * block_size * num_blocks /
                                                 config.num_layers / 2);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (auto* side : {&cache->keys_, &cache->values_}) {
      ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer,
                               device.Allocate(MemoryKind::kDevice, layer_bytes));
      side->push_back(std::move(buffer));
    }
  }
  return cache;
}

KvCacheView KvCache::layer(int index) const {
  const size_t i = static_cast<size_t>(index);
  return {keys_[i]->As<BFloat16>(), values_[i]->As<BFloat16>(), attention_.num_kv_heads,
          attention_.head_dim, block_size_};
}

}  // namespace atelier
