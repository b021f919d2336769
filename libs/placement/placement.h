#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// What fails together, narrow to wide: one process, one NUMA node of a host, one host.
enum class FailureDomain { kWorker, kNumaNode, kHost };
absl::string_view FailureDomainName(FailureDomain domain);  // "worker", "NUMA node", "host"

// A worker, and what it may hold.
struct PlacementSite {
  std::string name;  // unique
  std::string host;
  int numa_node = 0;
  int64_t memory_bytes = 0;
};

// A part of one layer that is placed whole.
struct PlacementUnit {
  double load = 0;    // bytes of weights that a batch reads of it, in any unit; finite, >= 0
  int64_t bytes = 0;  // that one copy takes; > 0
};

// Of one layer: by unit the workers that hold a copy, ascending.
using LayerHolders = std::vector<std::vector<int>>;
using Holders = std::vector<LayerHolders>;  // [layer][unit]

struct PlacementProblem {
  std::vector<PlacementSite> sites;
  std::vector<std::vector<PlacementUnit>> layers;  // [layer][unit]
  int copies = 0;        // that every unit has at least; 0 = two, of a single worker one
  int extra_copies = 0;  // more of each layer, for its hottest units, as far as memory reaches
  // No two copies of a unit in one such domain. Unset = the widest that can be kept.
  std::optional<FailureDomain> apart = std::nullopt;
  // What is held today, by index of sites; copies that no site holds any more are left out. Empty
  // = nothing; else of the layers and units of `layers`.
  Holders current = {};
  // How much more than that of a placement made anew the load of a layer's busiest worker may be,
  // for the sake of fewer moves: 0.02 = 2 %.
  double tolerance = 0.02;
};

struct PlacementPlan {
  Holders holders;
  int copies = 0;
  FailureDomain apart = FailureDomain::kWorker;
};

// Places every unit so that no loss of one domain takes its last copy, within every site's memory.
// Makes the load of each layer's busiest worker small, a unit's copies sharing its load evenly; and
// then moves few bytes from `current`. A pure function: the same problem gives the same plan.
// INVALID_ARGUMENT for a problem that contradicts itself, naming the field; FAILED_PRECONDITION
// when there are fewer domains than copies; RESOURCE_EXHAUSTED with the missing bytes when memory
// does not suffice.
absl::StatusOr<PlacementPlan> PlanPlacement(const PlacementProblem& problem);

}  // namespace atelier
