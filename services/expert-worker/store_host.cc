#include "services/expert-worker/store_host.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/numa/topology.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {
namespace {

bool SameExperts(const ShardSpec& a, const ShardSpec& b) {
  return a.expert_begin == b.expert_begin && a.expert_end == b.expert_end &&
         a.slice_index == b.slice_index && a.slice_count == b.slice_count;
}

void AppendName(std::string* out, const ShardSpec& shard) {
  absl::StrAppend(out, ShardName(shard));
}

// The executor and the weights that it reads.
struct Computed {
  std::shared_ptr<const ExpertStore> store;
  std::unique_ptr<Executor> executor;
};

std::vector<ExpertStore::Part> AllOf(const ExpertStore& store) {
  std::vector<ExpertStore::Part> parts;
  for (size_t i = 0; i < store.shards().size(); ++i) {
    parts.push_back({&store, static_cast<int>(i), store.shards()[i].layers});
  }
  return parts;
}

// What is unloaded by halves would not be what Describe said.
absl::Status CheckWhole(const std::vector<ShardSpec>& held, const ShardSpec& asked) {
  const bool known = std::any_of(held.begin(), held.end(),
                                 [&](const ShardSpec& shard) { return SameExperts(shard, asked); });
  for (const ShardSpec& shard : held) {
    const bool overlaps =
        asked.expert_begin < shard.expert_end && shard.expert_begin < asked.expert_end;
    if (known || !overlaps) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shards: \"", ShardName(asked), "\" cuts into \"", ShardName(shard),
                     "\", which is held and can only go with all its experts and slice"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ShardSpec> Without(const std::vector<ShardSpec>& held,
                               const std::vector<ShardSpec>& others) {
  std::vector<ShardSpec> left;
  for (ShardSpec shard : held) {
    for (const ShardSpec& other : others) {
      if (!SameExperts(shard, other)) continue;
      std::vector<int> layers;
      std::set_difference(shard.layers.begin(), shard.layers.end(), other.layers.begin(),
                          other.layers.end(), std::back_inserter(layers));
      shard.layers = std::move(layers);
    }
    if (!shard.layers.empty()) left.push_back(std::move(shard));
  }
  return left;
}

absl::StatusOr<HeldShards> StoreHost::Start() {
  context_.arena.BindCallingThread();
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<ExpertStore> store,
                           ExpertStore::Load(context_.checkpoint, options_, context_.arena,
                                             context_.clock, context_.logger));
  return Hold(std::move(store));
}

absl::StatusOr<HeldShards> StoreHost::Load(const std::vector<ShardSpec>& shards) {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<ShardSpec> asked, WithLayers(shards));
  ExpertStoreOptions more = options_;
  more.shards = Without(asked, store_->shards());
  if (more.shards.empty()) return held_;
  std::vector<ShardSpec> all = store_->shards();
  all.insert(all.end(), more.shards.begin(), more.shards.end());
  ATELIER_RETURN_IF_ERROR(WithLayers(all).status());
  ATELIER_ASSIGN_OR_RETURN(NodeArena * arena, LoadingArena());
  ATELIER_ASSIGN_OR_RETURN(
      const std::unique_ptr<ExpertStore> added,
      ExpertStore::Load(context_.checkpoint, more, *arena, context_.clock, context_.logger));
  std::vector<ExpertStore::Part> parts = AllOf(*store_);
  const std::vector<ExpertStore::Part> new_parts = AllOf(*added);
  parts.insert(parts.end(), new_parts.begin(), new_parts.end());
  return Hold(ExpertStore::Combine(parts));
}

absl::StatusOr<HeldShards> StoreHost::Unload(const std::vector<ShardSpec>& shards) {
  ATELIER_ASSIGN_OR_RETURN(const std::vector<ShardSpec> asked, WithLayers(shards));
  std::vector<ExpertStore::Part> parts;
  for (const ShardSpec& shard : asked) {
    ATELIER_RETURN_IF_ERROR(CheckWhole(store_->shards(), shard));
  }
  bool any = false;
  for (ExpertStore::Part& part : AllOf(*store_)) {
    const std::vector<ShardSpec> left =
        Without({store_->shards()[static_cast<size_t>(part.shard)]}, asked);
    any |= left.empty() || left[0].layers != part.layers;
    if (left.empty()) continue;
    part.layers = left[0].layers;
    parts.push_back(std::move(part));
  }
  if (!any) return held_;
  if (parts.empty()) {
    return absl::FailedPreconditionError(
        "shards: that is all this worker holds; drain and stop it instead");
  }
  return Hold(ExpertStore::Combine(parts));
}

// As PlanShards fills them in; refuses what it refuses.
absl::StatusOr<std::vector<ShardSpec>> StoreHost::WithLayers(
    const std::vector<ShardSpec>& shards) const {
  const absl::StatusOr<std::vector<ShardPlan>> plans =
      PlanShards(context_.checkpoint.config(), shards, options_.methods);
  if (!plans.ok()) {
    return absl::Status(plans.status().code(), absl::StrCat("shards: ", plans.status().message()));
  }
  std::vector<ShardSpec> specs;
  for (const ShardPlan& plan : *plans) specs.push_back(plan.spec);
  return specs;
}

absl::StatusOr<HeldShards> StoreHost::Hold(std::shared_ptr<const ExpertStore> store) {
  ATELIER_ASSIGN_OR_RETURN(
      const std::vector<ShardPlan> plans,
      PlanShards(context_.checkpoint.config(), store->shards(), options_.methods));
  auto computed = std::make_shared<Computed>();
  computed->store = store;
  computed->executor = CreateExecutor(*store, context_.kernels, context_.arena);
  HeldShards held;
  held.shards = store->shards();
  for (const ShardPlan& plan : plans) {
    held.expert_bytes.push_back(plan.bytes() / (plan.num_layers() * plan.num_experts()));
  }
  Executor* const executor = computed->executor.get();
  held.executor = std::shared_ptr<Executor>(std::move(computed), executor);
  held_ = held;
  store_ = std::move(store);
  if (context_.on_bytes) context_.on_bytes(store_->bytes());
  context_.logger.Info("shards_held", {Kv("shards", absl::StrJoin(held.shards, "; ", AppendName)),
                                       Kv("bytes", store_->bytes())});
  return held;
}

// One thread, so that calls keep the others.
absl::StatusOr<NodeArena*> StoreHost::LoadingArena() {
  if (loading_arena_ == nullptr) {
    const NodeArenaOptions options{context_.arena.numa_node(), 1, false};
    ATELIER_ASSIGN_OR_RETURN(loading_arena_,
                             NodeArena::Create(options, Topology::Detect(), context_.logger));
  }
  return loading_arena_.get();
}

}  // namespace atelier
