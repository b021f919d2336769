#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/packed_file_writer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/model/expert_set.h"
#include "libs/model/shard.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

class NodeArena;

struct ExpertStoreOptions {
  LayerMethods methods;           // of ChooseMethods, or UniformMethods for floats
  std::vector<ShardSpec> shards;  // layers empty = every MoE layer of the model
  ExpertSet skipped;              // not held, though in the shards' ranges
  // Folder of packed files that outlive the process; empty = packed into memory.
  std::string store_dir;
  PackedFileSystem store_system = PackedFileSystem::Real();
  bool populate = false;  // with store_dir: reads all pages before Load returns
  // Bytes that may be allocated; unset = AvailableMemoryBytes() of the arena's node.
  std::function<int64_t()> available_bytes;
  // Asked between layers: true ends Load with CANCELLED. Unset = never.
  std::function<bool()> cancelled;
};

// The packed weights of the shards one worker holds, in memory of its node or mapped from files.
// Immutable after Load, so thread-safe.
class ExpertStore {
 public:
  // What each shard takes, every tensor that it would be packed from found and checked: a broken
  // checkpoint costs no memory and no minutes. Errors as PlanShards' and Checkpoint's.
  static absl::StatusOr<std::vector<ShardPlan>> Plan(const Checkpoint& checkpoint,
                                                     const std::vector<ShardSpec>& shards,
                                                     const LayerMethods& methods);
  // Packs from the checkpoint, layer by layer, on the arena's threads, reporting progress; with a
  // store directory into its files, where they are not there yet (ExpertStoreFiles). Everything is
  // validated before the first allocation. Errors as Checkpoint's and PackedFileWriter's, plus
  // INVALID_ARGUMENT for a slice or expert range the model does not have and RESOURCE_EXHAUSTED
  // (with both sizes) when the weights do not fit in the memory, or the disk, that is available.
  static absl::StatusOr<std::unique_ptr<ExpertStore>> Load(const Checkpoint& checkpoint,
                                                           const ExpertStoreOptions& options,
                                                           NodeArena& arena, Clock& clock,
                                                           const Logger& logger);
  // Of some shards of other stores of one model and node, or of some layers of them, with which it
  // shares their weights: what a layer takes is given back when the last store that has it goes.
  struct Part {
    const ExpertStore* store;
    int shard;
    std::vector<int> layers;  // of the shard, ascending, at least one
  };
  static std::unique_ptr<ExpertStore> Combine(const std::vector<Part>& parts);

  virtual ~ExpertStore() = default;

  virtual const std::vector<ShardSpec>& shards() const = 0;
  // Of the first layer's gate; every ExpertView says its own.
  virtual Method method() const = 0;
  virtual int hidden_size() const = 0;
  virtual int num_experts() const = 0;  // of the model's layer
  virtual bool HoldsLayer(int shard, int layer) const = 0;
  // REQUIRES: shard holds layer, and expert is in its range and not skipped.
  virtual const ExpertView& expert(int shard, int layer, int expert) const = 0;
  virtual int64_t bytes() const = 0;
};

}  // namespace atelier
