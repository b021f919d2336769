#include "tools/atelier/placement_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

ShardSpec WithoutLayers(const ShardSpec& shard) {
  ShardSpec unit = shard;
  unit.layers.clear();
  return unit;
}

bool AddedBefore(const ShardSpec& a, const ShardSpec& b) {
  const auto key = [](const ShardSpec& unit) {
    return std::make_tuple(unit.expert_begin, unit.slice_index, unit.expert_end, unit.slice_count);
  };
  return key(a) < key(b);
}

absl::Status NotWhole(const ShardSpec& unit, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("experts ", unit.expert_begin, "-",
                                                 unit.expert_end - 1, ", slice ", unit.slice_index,
                                                 "/", unit.slice_count, ": ", problem));
}

// Units in order hold every expert once.
absl::Status CheckWhole(const PlacementUnits& units, int num_experts) {
  int next_expert = 0;
  int next_slice = 0;
  for (const ShardSpec& unit : units) {
    if (unit.expert_begin != next_expert || unit.slice_index != next_slice) {
      return NotWhole(
          unit, absl::StrCat("what comes before it leaves a gap or reaches into it (", "expert ",
                             next_expert, ", slice ", next_slice, " should be next)"));
    }
    const bool last_slice = unit.slice_index + 1 == unit.slice_count;
    next_slice = last_slice ? 0 : unit.slice_index + 1;
    if (last_slice) next_expert = unit.expert_end;
  }
  if (next_expert == num_experts && next_slice == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("nobody holds expert ", next_expert, ", slice ", next_slice));
}

}  // namespace

PlacementUnits EvenUnits(int num_experts, int blocks, int slices) {
  PlacementUnits units;
  for (int block = 0; block < blocks; ++block) {
    const auto boundary = [&](int64_t at) { return static_cast<int>(at * num_experts / blocks); };
    for (int slice = 0; slice < slices; ++slice) {
      units.push_back({{}, boundary(block), boundary(block + 1), slice, slices});
    }
  }
  return units;
}

absl::StatusOr<PlacementUnits> UnitsOf(const PlacementFile& placement) {
  std::map<int, std::set<ShardSpec, decltype(&AddedBefore)>> by_layer;
  for (const PlacedWorker& worker : placement.workers) {
    for (const ShardSpec& shard : worker.shards) {
      for (const int layer : shard.layers) {
        by_layer.try_emplace(layer, &AddedBefore).first->second.insert(WithoutLayers(shard));
      }
    }
  }
  if (by_layer.empty()) return absl::InvalidArgumentError("its workers hold nothing");
  const auto& first = by_layer.begin()->second;
  const PlacementUnits units(first.begin(), first.end());
  for (const auto& [layer, held] : by_layer) {
    if (PlacementUnits(held.begin(), held.end()) == units) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is in other parts than layer ", by_layer.begin()->first));
  }
  ATELIER_RETURN_IF_ERROR(CheckWhole(units, placement.num_experts));
  return units;
}

Holders HoldersOf(const PlacementFile& placement, const PlacementUnits& units,
                  const std::vector<int>& layers, const std::vector<PlacedWorker>& workers) {
  std::map<int, size_t> position;
  for (size_t i = 0; i < layers.size(); ++i) position[layers[i]] = i;
  Holders holders(layers.size(), LayerHolders(units.size()));
  for (size_t w = 0; w < workers.size(); ++w) {
    const auto placed = placement.Find(workers[w].name);
    if (!placed.ok()) continue;
    for (const ShardSpec& shard : (*placed)->shards) {
      const auto unit = std::find(units.begin(), units.end(), WithoutLayers(shard)) - units.begin();
      for (const int layer : shard.layers) {
        const auto found = position.find(layer);
        if (found == position.end()) continue;
        holders[found->second][static_cast<size_t>(unit)].push_back(static_cast<int>(w));
      }
    }
  }
  return holders;
}

std::vector<std::vector<ShardSpec>> ShardsOf(const Holders& holders, const PlacementUnits& units,
                                             const std::vector<int>& layers, size_t num_workers) {
  std::vector<std::vector<ShardSpec>> shards(num_workers, units);
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t unit = 0; unit < units.size(); ++unit) {
      for (const int worker : holders[l][unit]) {
        shards[static_cast<size_t>(worker)][unit].layers.push_back(layers[l]);
      }
    }
  }
  for (std::vector<ShardSpec>& held : shards) {
    held.erase(std::remove_if(held.begin(), held.end(),
                              [](const ShardSpec& shard) { return shard.layers.empty(); }),
               held.end());
  }
  return shards;
}

}  // namespace atelier
