#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/device/device.h"
#include "libs/model/model_config.h"

namespace atelier {

// The paged keys and values of every layer, allocated once.
class KvCache {
 public:
  // Blocks that a budget holds. RESOURCE_EXHAUSTED names budget and bytes per block when not even
  // one fits.
  static absl::StatusOr<int> CountBlocks(const ModelConfig& config, int64_t budget_bytes,
                                         int block_size);
  // Errors as Device::Allocate.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Device& device, const ModelConfig& config,
                                                         int num_blocks, int block_size);

  int num_blocks() const { return num_blocks_; }
  KvCacheView layer(int index) const;

 private:
  KvCache() = default;

  std::vector<std::unique_ptr<DeviceBuffer>> keys_;    // per layer
  std::vector<std::unique_ptr<DeviceBuffer>> values_;  // per layer
  AttentionConfig attention_;
  int num_blocks_ = 0;
  int block_size_ = 0;
};

}  // namespace atelier
