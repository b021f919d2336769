#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace atelier::faults {

enum class FaultKind {
  kKill,
  kKillIdle,
  kKillStarting,
  kKillTwo,
  kCrash,
  kStop,
  kStopKill,
  kSlow,
  kRollingRestart,
  kAbort,
  kKillFrontend,
  kCut,
  kSwallow,
  kRefuse,
  kLoss,
  kDelay,
  kDuplicate,
  kReorder,
  kPartition,
  kPartitionIn,
  kPartitionOut,
  kHalfOpen,
  kOutage,
  kNan,
  kScribble,
  kFlood,
};

// What a cluster has to have so that a fault can happen in it.
enum class Needs { kNothing, kTwoSlices, kTwoFrontends, kProxy, kLink, kShm, kBf16 };

struct FaultInfo {
  FaultKind kind;
  absl::string_view name;  // as --only takes it
  int weight;              // of a draw, relative to the others
  Needs needs;
  absl::string_view what;
};

// Every fault, in the order of their worth. Each heals before the next begins.
absl::Span<const FaultInfo> FaultMenu();
const FaultInfo& InfoOf(FaultKind kind);
// Null for an unknown name.
const FaultInfo* FindFault(absl::string_view name);

// What a run's processes look like.
struct ClusterShape {
  int slices = 2;
  int replicas = 3;   // of every slice
  int frontends = 2;  // the first is never killed: what grows is measured there
  bool link = true;   // the last replica of every slice is on a host of its own
  bool bf16 = true;   // so the first slice keeps its weights
};

// Processes that get SIGKILL (or crash) in one such fault.
int KillsOf(FaultKind kind, const ClusterShape& shape);
// Why the fault cannot happen in such a cluster; empty = it can.
std::string Obstacle(const FaultInfo& fault, const ClusterShape& shape);

// For --list.
std::string MenuText();

}  // namespace atelier::faults
