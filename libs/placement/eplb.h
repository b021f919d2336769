#pragma once

#include <vector>

#include "absl/status/statusor.h"

namespace atelier {

// The load balancer that DeepSeek published for GPUs (EPLB), here to compare with: it balances
// tokens, knows nothing of faults and may put two copies of an expert on one device.
struct EplbShape {
  int slots = 0;    // of all devices together, for experts and their copies
  int groups = 1;   // of experts, kept on one node where nodes divides groups
  int nodes = 1;    // divides devices
  int devices = 1;  // divides slots
};

struct EplbPlan {
  // [layer][slot]: the expert there. Devices hold equal runs of slots.
  std::vector<std::vector<int>> expert_of_slot;
  // [layer][expert]: its slots, by rank of the copy.
  std::vector<std::vector<std::vector<int>>> slots_of_expert;
};

// loads: [layer][expert], finite and >= 0. Ties go to the lower index everywhere.
// INVALID_ARGUMENT naming what does not divide, or layers of different lengths.
absl::StatusOr<EplbPlan> BalanceByEplb(const std::vector<std::vector<double>>& loads,
                                       const EplbShape& shape);

}  // namespace atelier
