#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libs/placement/eplb.h"
#include "libs/placement/placement.h"

namespace atelier {

// Mean load of a layer's workers over that of the busiest: 1 = all finish at once.
struct Balancedness {
  double mean = 1;   // of the layers
  double worst = 1;  // of the layers
};

// What the loss of any one domain of a kind does.
struct LossQuality {
  FailureDomain domain = FailureDomain::kWorker;
  int domains = 0;            // of that kind
  int64_t uncovered = 0;      // units of all layers that have no copy left, at the worst loss
  double mean_uncovered = 0;  // over the losses
  std::string worst;          // which: a worker, "host/node", a host; empty = none leaves any out
  Balancedness balance;       // of the survivors, the worst loss; with nothing uncovered
};

struct PlacementQuality {
  Balancedness balance;
  std::vector<int64_t> site_bytes;
  std::vector<double> site_load;    // of all layers
  int64_t moved_bytes = 0;          // copies that their sites do not hold today
  std::vector<LossQuality> losses;  // worker, NUMA node, host
};

// REQUIRES: holders of the problem's layers and units, each unit at least one.
PlacementQuality MeasurePlacement(const PlacementProblem& problem, const Holders& holders);

// As placement of experts on devices: copies of an expert that share a device are one.
Holders HoldersOf(const EplbPlan& plan, const EplbShape& shape);
// How many copies that leaves out, of all layers.
int64_t WastedCopies(const EplbPlan& plan, const EplbShape& shape);

}  // namespace atelier
