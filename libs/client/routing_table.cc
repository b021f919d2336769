#include "libs/client/routing_table.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

using Shards = std::vector<RoutedShard>;

std::string RangeText(int begin, int last) {
  return begin == last ? absl::StrCat(begin) : absl::StrCat(begin, "-", last);
}

// What must be the same everywhere: by `needs`, else as the first worker says.
template <typename T, typename Get>
absl::Status CheckSame(const std::vector<DescribedWorker>& workers, const T& needed,
                       absl::string_view what, Get get) {
  const bool given = needed != T();
  const T& expected = given ? needed : get(workers[0].description);
  const std::string whose =
      given ? "this side has" : absl::StrCat("worker ", workers[0].address, " has");
  for (const DescribedWorker& worker : workers) {
    const T& value = get(worker.description);
    if (value == expected) continue;
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker.address, " has ", what, " ",
                                                      value, " but ", whose, " ", expected));
  }
  return absl::OkStatus();
}

absl::Status CheckModels(const std::vector<DescribedWorker>& workers, const RoutingNeeds& needs) {
  ATELIER_RETURN_IF_ERROR(
      CheckSame(workers, needs.model_digest, "model digest",
                [](const WorkerDescription& d) -> const std::string& { return d.model_digest; }));
  ATELIER_RETURN_IF_ERROR(
      CheckSame(workers, needs.hidden_size, "hidden size",
                [](const WorkerDescription& d) -> const int& { return d.hidden_size; }));
  return CheckSame(workers, needs.num_experts, "number of experts",
                   [](const WorkerDescription& d) -> const int& { return d.num_experts; });
}

// Who holds expert `expert` of a layer, for one message.
class ExpertCoverage {
 public:
  ExpertCoverage(const Shards& shards, int expert, const std::vector<DescribedWorker>& workers)
      : workers_(workers) {
    for (const RoutedShard& shard : shards) {
      if (expert >= shard.expert_begin && expert < shard.expert_end) holders_.push_back(shard);
    }
  }

  // "" when every slice is held as exactly one shard.
  std::string Problem() const {
    if (holders_.empty()) return "no worker holds them";
    const int count = holders_[0].slice_count;
    for (const RoutedShard& holder : holders_) {
      if (holder.slice_count != count) {
        return absl::StrCat("cut into ", count, " slices by ", Address(holders_[0]), " but into ",
                            holder.slice_count, " by ", Address(holder));
      }
    }
    std::vector<std::string> problems;
    for (int slice = 0; slice < count; ++slice) AddSliceProblem(slice, count, problems);
    return absl::StrJoin(problems, ", ");
  }

 private:
  // Of all its replicas.
  std::string Address(const RoutedShard& shard) const {
    return absl::StrJoin(shard.replicas, " and ", [&](std::string* out, const ShardReplica& one) {
      absl::StrAppend(out, workers_[one.worker].address);
    });
  }

  void AddSliceProblem(int slice, int count, std::vector<std::string>& problems) const {
    std::vector<std::string> addresses;
    for (const RoutedShard& holder : holders_) {
      if (holder.slice_index == slice) addresses.push_back(Address(holder));
    }
    if (addresses.size() == 1) return;
    const std::string name = count == 1 ? "all of it" : absl::StrCat("slice ", slice, "/", count);
    problems.push_back(addresses.empty()
                           ? absl::StrCat("no worker holds ", name)
                           : absl::StrCat(name, " is held by ", absl::StrJoin(addresses, " and "),
                                          " in shards that are not the same"));
  }

  const std::vector<DescribedWorker>& workers_;
  Shards holders_;
};

// "experts 8-15: no worker holds them; …" of one layer; "" when it is complete.
std::string LayerProblem(const Shards& shards, int num_experts,
                         const std::vector<DescribedWorker>& workers) {
  std::vector<std::string> texts;
  int begin = 0;
  std::string current = ExpertCoverage(shards, 0, workers).Problem();
  for (int expert = 1; expert <= num_experts; ++expert) {
    const std::string next =
        expert == num_experts ? "" : ExpertCoverage(shards, expert, workers).Problem();
    if (expert < num_experts && next == current) continue;
    if (!current.empty()) {
      texts.push_back(absl::StrCat(expert - 1 == begin ? "expert " : "experts ",
                                   RangeText(begin, expert - 1), ": ", current));
    }
    begin = expert;
    current = next;
  }
  return absl::StrJoin(texts, "; ");
}

// Layers with the same problem are named together.
absl::Status CheckCoverage(const std::map<int, Shards>& layers, int num_experts,
                           const std::vector<DescribedWorker>& workers) {
  std::vector<std::pair<std::string, std::vector<int>>> problems;
  for (const auto& [layer, shards] : layers) {
    const std::string problem = LayerProblem(shards, num_experts, workers);
    if (problem.empty()) continue;
    if (problems.empty() || problems.back().first != problem) problems.push_back({problem, {}});
    problems.back().second.push_back(layer);
  }
  if (problems.empty()) return absl::OkStatus();
  std::vector<std::string> texts;
  for (const auto& [problem, named] : problems) {
    texts.push_back(absl::StrCat(named.size() == 1 ? "layer " : "layers ",
                                 RangeText(named.front(), named.back()), ", ", problem));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the workers' shards do not fit together: ", absl::StrJoin(texts, "; ")));
}

// The same shard of another worker is a replica of it; a worker that names a shard twice is not.
void AddReplica(Shards& shards, const ShardSpec& spec, ShardReplica replica) {
  for (RoutedShard& shard : shards) {
    const bool same =
        shard.expert_begin == spec.expert_begin && shard.expert_end == spec.expert_end &&
        shard.slice_index == spec.slice_index && shard.slice_count == spec.slice_count;
    if (!same || shard.replicas.back().worker == replica.worker) continue;
    shard.replicas.push_back(replica);
    return;
  }
  shards.push_back(
      {spec.expert_begin, spec.expert_end, spec.slice_index, spec.slice_count, {replica}});
}

// Replicas name workers by their position.
std::map<int, Shards> CollectLayers(const std::vector<DescribedWorker>& workers,
                                    const RoutingNeeds& needs) {
  std::map<int, Shards> layers;
  for (int layer : needs.moe_layers) layers[layer] = {};
  for (size_t w = 0; w < workers.size(); ++w) {
    const std::vector<ShardSpec>& shards = workers[w].description.shards;
    for (size_t s = 0; s < shards.size(); ++s) {
      for (int layer : shards[s].layers) {
        AddReplica(layers[layer], shards[s], {w, static_cast<int>(s)});
      }
    }
  }
  for (auto& [layer, shards] : layers) {
    std::sort(shards.begin(), shards.end(), [](const RoutedShard& a, const RoutedShard& b) {
      return std::tie(a.expert_begin, a.slice_index, a.expert_end) <
             std::tie(b.expert_begin, b.slice_index, b.expert_end);
    });
  }
  return layers;
}

absl::Status CheckMethods(const std::map<int, Shards>& layers,
                          const std::vector<DescribedWorker>& workers) {
  for (const auto& [layer, shards] : layers) {
    for (const RoutedShard& shard : shards) {
      const DescribedWorker& first = workers[shard.replicas[0].worker];
      for (const ShardReplica& replica : shard.replicas) {
        const DescribedWorker& worker = workers[replica.worker];
        if (worker.description.method == first.description.method) continue;
        return absl::FailedPreconditionError(absl::StrCat(
            "layer ", layer, ": ", first.address, " and ", worker.address,
            " hold the same shard, but by the methods ", first.description.method, " and ",
            worker.description.method, ": results would depend on which of them answers"));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<size_t> WorkersOf(const RoutedShard& shard) {
  std::vector<size_t> workers;
  for (const ShardReplica& replica : shard.replicas) workers.push_back(replica.worker);
  std::sort(workers.begin(), workers.end());
  return workers;
}

RoutedLayer GroupReplicas(Shards shards) {
  std::map<std::vector<size_t>, std::vector<size_t>> by_workers;
  std::map<size_t, size_t> held;  // shards of the layer, by worker
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::vector<size_t> workers = WorkersOf(shards[s]);
    for (const size_t worker : workers) ++held[worker];
    by_workers[workers].push_back(s);
  }
  RoutedLayer layer;
  layer.shards = std::move(shards);
  for (const auto& [workers, members] : by_workers) {
    const bool holds_more =
        std::any_of(workers.begin(), workers.end(),
                    [&, count = members.size()](size_t worker) { return held[worker] > count; });
    layer.groups.push_back({workers, members, holds_more});
  }
  return layer;
}

// From positions to the caller's numbers.
Shards Numbered(Shards shards, const std::vector<DescribedWorker>& workers) {
  for (RoutedShard& shard : shards) {
    for (ShardReplica& replica : shard.replicas) replica.worker = workers[replica.worker].number;
  }
  return shards;
}

}  // namespace

absl::StatusOr<RoutingTable> RoutingTable::Build(const std::vector<DescribedWorker>& workers,
                                                 const RoutingNeeds& needs) {
  if (workers.empty()) return absl::FailedPreconditionError("no workers");
  ATELIER_RETURN_IF_ERROR(CheckModels(workers, needs));
  RoutingTable table;
  table.hidden_size_ = workers[0].description.hidden_size;
  table.num_experts_ = workers[0].description.num_experts;
  table.model_digest_ = workers[0].description.model_digest;
  std::map<int, Shards> layers = CollectLayers(workers, needs);
  ATELIER_RETURN_IF_ERROR(CheckCoverage(layers, table.num_experts_, workers));
  ATELIER_RETURN_IF_ERROR(CheckMethods(layers, workers));
  for (auto& [layer, shards] : layers) {
    table.layers_[layer] = GroupReplicas(Numbered(std::move(shards), workers));
  }
  std::set<std::vector<size_t>> groups;
  for (const auto& [layer, routed] : table.layers_) {
    for (const ReplicaGroup& group : routed.groups) groups.insert(group.workers);
  }
  table.groups_.assign(groups.begin(), groups.end());
  return table;
}

const RoutedLayer* RoutingTable::Layer(int layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? nullptr : &found->second;
}

bool RoutingTable::HasSamePartsIn(const RoutingTable& other) const {
  const auto same = [](const RoutedShard& a, const RoutedShard& b) {
    return a.expert_begin == b.expert_begin && a.expert_end == b.expert_end &&
           a.slice_index == b.slice_index && a.slice_count == b.slice_count;
  };
  return std::all_of(layers_.begin(), layers_.end(), [&](const auto& entry) {
    const Shards& mine = entry.second.shards;
    const RoutedLayer* layer = other.Layer(entry.first);
    return layer != nullptr &&
           std::equal(mine.begin(), mine.end(), layer->shards.begin(), layer->shards.end(), same);
  });
}

}  // namespace atelier
