#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "libs/model/placement_file.h"
#include "libs/model/shard.h"
#include "libs/placement/placement.h"

namespace atelier {

// The parts of every layer that are placed whole, in the order in which a client adds their sums:
// shards without layers. They stay what they are from one placement to the next, so that moving
// one changes no bit of any result.
using PlacementUnits = std::vector<ShardSpec>;

// `blocks` runs of experts, as even as can be, each in `slices`. REQUIRES: 1 <= blocks <=
// num_experts and slices >= 1.
PlacementUnits EvenUnits(int num_experts, int blocks, int slices);

// Those that a placement has. INVALID_ARGUMENT unless they are the same in all layers and together
// every expert, each once.
absl::StatusOr<PlacementUnits> UnitsOf(const PlacementFile& placement);

// The placement as PlanPlacement takes it: of the given layers, by position in `workers`, found by
// name; who is not there holds nothing. REQUIRES: the units are those of the placement.
Holders HoldersOf(const PlacementFile& placement, const PlacementUnits& units,
                  const std::vector<int>& layers, const std::vector<PlacedWorker>& workers);

// What each worker holds: of each unit the layers in which it does. `holders` is by position in
// `layers`.
std::vector<std::vector<ShardSpec>> ShardsOf(const Holders& holders, const PlacementUnits& units,
                                             const std::vector<int>& layers, size_t num_workers);

}  // namespace atelier
