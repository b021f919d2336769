#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/dtype.h"
#include "libs/model/placement_file.h"
#include "libs/placement/placement.h"
#include "libs/placement/placement_quality.h"
#include "tools/atelier/expert_loads.h"
#include "tools/atelier/placement_units.h"

namespace atelier {

struct PlanOptions {
  std::vector<PlacedWorker> workers;            // whose shards do not matter
  std::optional<Method> method = std::nullopt;  // as --method of the workers; unset = as published
  int copies = 0;                               // as in PlacementProblem, like the next two
  int extra_copies = 0;
  std::optional<FailureDomain> apart = std::nullopt;
  double tolerance = 0.02;
  int blocks = 0;     // runs of experts that are placed whole; 0 = those of `current`, else as few
                      // as give a balancedness of kBalanced
  int slices = 1;     // of each expert
  ExpertLoads loads;  // empty = all experts are chosen alike
  int batch = 1;      // tokens that are decoded together
  std::optional<PlacementFile> current = std::nullopt;  // what is held today
};

inline constexpr double kBalanced = 0.95;

// EPLB's answer for the same loads and as many copies of single experts.
struct EplbComparison {
  int slots = 0;  // of a layer
  Balancedness balance;
  int64_t wasted_copies = 0;        // that lie beside another of the same expert
  std::vector<LossQuality> losses;  // uncovered: experts
};

struct PlannedPlacement {
  PlacementFile file;
  std::string methods;  // how the experts are kept
  std::vector<int> layers;
  PlacementUnits units;
  PlacementPlan plan;
  PlacementQuality quality;
  EplbComparison eplb;
  int64_t once_bytes = 0;  // one copy of everything
  int64_t all_bytes = 0;   // all copies
};

// Who shall hold which experts of the checkpoint. Reads headers only. Errors as PlanPlacement's,
// and INVALID_ARGUMENT beginning with the flag of `atelier plan` for what the model does not allow.
absl::StatusOr<PlannedPlacement> PlanModel(const Checkpoint& checkpoint,
                                           const PlanOptions& options);

std::string PlacementText(const PlannedPlacement& planned);
std::string PlacementJson(const PlannedPlacement& planned);

}  // namespace atelier
