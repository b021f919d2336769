#include "tests/e2e/faults/fault_schedule.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace atelier::faults {
namespace {

// Draws with engines whose results the standard fixes, so that a seed means the same everywhere.
class Drawer {
 public:
  explicit Drawer(const ScheduleSpec& spec) : shape_(spec.shape), random_(spec.seed) {}

  double Unit() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  int Below(int bound) { return bound <= 1 ? 0 : static_cast<int>(Unit() * bound); }
  // Short ones as often as long ones, by factors.
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least * std::pow(absl::FDivDuration(most, least), Unit());
  }

  FaultKind Kind(const std::vector<FaultInfo>& faults) {
    int total = 0;
    for (const FaultInfo& fault : faults) total += fault.weight;
    int left = Below(total);
    for (const FaultInfo& fault : faults) {
      left -= fault.weight;
      if (left < 0) return fault.kind;
    }
    return faults.back().kind;
  }

  PlannedFault Fault(FaultKind kind) {
    PlannedFault fault;
    fault.kind = kind;
    fault.slice = Below(shape_.slices);
    fault.replica = Below(shape_.replicas);
    fault.other_replica = Below(shape_.replicas);
    fault.frontend = 1 + Below(shape_.frontends - 1);
    fault.after = Between(absl::Milliseconds(5), absl::Milliseconds(200));
    fault.lasts = Duration(kind);
    fault.severity = Unit();
    fault.gently = Below(2) == 1;
    return fault;
  }

 private:
  absl::Duration Duration(FaultKind kind) {
    switch (kind) {
      case FaultKind::kStop:
      case FaultKind::kSwallow:
      case FaultKind::kPartition:
      case FaultKind::kPartitionIn:
      case FaultKind::kPartitionOut:
        return Between(absl::Milliseconds(10), absl::Seconds(5));
      case FaultKind::kRefuse:
      case FaultKind::kNan:
        return Between(absl::Milliseconds(10), absl::Seconds(2));
      case FaultKind::kSlow:
      case FaultKind::kLoss:
      case FaultKind::kDelay:
      case FaultKind::kDuplicate:
      case FaultKind::kReorder:
        return Between(absl::Milliseconds(300), absl::Seconds(2));
      case FaultKind::kScribble:
        return Between(absl::Milliseconds(5), absl::Milliseconds(50));
      default:
        return Between(absl::Milliseconds(1), absl::Milliseconds(300));
    }
  }

  const ClusterShape shape_;
  std::mt19937_64 random_;
};

std::vector<FaultInfo> Possible(const ScheduleSpec& spec) {
  std::vector<FaultInfo> faults;
  for (const FaultInfo& fault : FaultMenu()) {
    if (spec.only.has_value() && *spec.only != fault.kind) continue;
    if (Obstacle(fault, spec.shape).empty()) faults.push_back(fault);
  }
  return faults;
}

}  // namespace

std::vector<PlannedFault> MakeSchedule(const ScheduleSpec& spec) {
  const std::vector<FaultInfo> possible = Possible(spec);
  std::vector<PlannedFault> schedule;
  if (possible.empty()) return schedule;
  const bool counts_faults = possible.size() == 1 && KillsOf(possible[0].kind, spec.shape) == 0;
  Drawer drawer(spec);
  int count = 0;
  const auto add = [&](FaultKind kind) {
    schedule.push_back(drawer.Fault(kind));
    count += counts_faults ? 1 : KillsOf(kind, spec.shape);
  };
  std::vector<FaultInfo> order = possible;
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(drawer.Below(static_cast<int>(i)))]);
  }
  for (const FaultInfo& fault : order) add(fault.kind);
  while (count < spec.kills) add(drawer.Kind(possible));
  return schedule;
}

std::string ToString(const PlannedFault& fault) {
  return absl::StrFormat(
      "%s worker=%d-%d other=%d frontend=%d after=%dms lasts=%dms severity=%.3f%s",
      InfoOf(fault.kind).name, fault.slice, fault.replica, fault.other_replica, fault.frontend,
      absl::ToInt64Milliseconds(fault.after), absl::ToInt64Milliseconds(fault.lasts),
      fault.severity, fault.gently ? " gently" : "");
}

}  // namespace atelier::faults
