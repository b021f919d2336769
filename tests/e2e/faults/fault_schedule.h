#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/faults/fault_menu.h"

namespace atelier::faults {

// One fault with all that is drawn for it, so that a line of the output says what to do again.
struct PlannedFault {
  FaultKind kind = FaultKind::kKill;
  int slice = 0;
  int replica = 0;
  int other_replica = 0;  // of the next slice, where two die
  int frontend = 1;       // never the first
  absl::Duration after;   // between the healing of the last one and this
  absl::Duration lasts;   // until it is mended; of a kill: until the restart
  double severity = 0;    // in [0, 1): how bad, for faults that know degrees
  bool gently = false;    // an abort by its call, instead of a hang-up
};

struct ScheduleSpec {
  uint64_t seed = 1;
  int kills = 50;                      // processes killed, at least
  std::optional<FaultKind> only = {};  // if it kills nothing, `kills` such faults
  ClusterShape shape = {};
};

// A pure function of `spec`. A mixed schedule begins with one of each fault that the cluster
// allows, in random order.
std::vector<PlannedFault> MakeSchedule(const ScheduleSpec& spec);

std::string ToString(const PlannedFault& fault);

}  // namespace atelier::faults
