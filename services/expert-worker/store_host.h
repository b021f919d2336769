#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/kernel_table.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/expert_store.h"
#include "services/expert-worker/shard_host.h"

namespace atelier {

// A ShardHost over a checkpoint and an ExpertStore.
class StoreHost final : public ShardHost {
 public:
  // All of them outlive this.
  struct Context {
    const Checkpoint& checkpoint;
    const KernelTable& kernels;
    NodeArena& arena;  // that computes, and loads what is held at first
    Clock& clock;
    const Logger& logger;
    std::function<void(int64_t bytes)> on_bytes = nullptr;  // told what is held, of every change
  };
  // `options` say how shards are kept; those that they name are loaded by Start, which is called
  // once, before the others.
  StoreHost(ExpertStoreOptions options, const Context& context)
      : options_(std::move(options)), context_(context) {}

  absl::StatusOr<HeldShards> Start();
  absl::StatusOr<HeldShards> Load(const std::vector<ShardSpec>& shards) override;
  absl::StatusOr<HeldShards> Unload(const std::vector<ShardSpec>& shards) override;

  int64_t bytes() const { return store_->bytes(); }

 private:
  absl::StatusOr<std::vector<ShardSpec>> WithLayers(const std::vector<ShardSpec>& shards) const;
  absl::StatusOr<HeldShards> Hold(std::shared_ptr<const ExpertStore> store);
  absl::StatusOr<NodeArena*> LoadingArena();

  const ExpertStoreOptions options_;
  const Context context_;
  std::unique_ptr<NodeArena> loading_arena_;  // made when it is needed
  std::shared_ptr<const ExpertStore> store_;
  HeldShards held_;
};

}  // namespace atelier
