#include "tests/e2e/faults/fault_menu.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/check.h"

namespace atelier::faults {
namespace {

constexpr FaultInfo kMenu[] = {
    {FaultKind::kKill, "kill", 40, Needs::kNothing,
     "SIGKILL of a worker while streams run, then a restart"},
    {FaultKind::kKillIdle, "kill_idle", 3, Needs::kNothing,
     "SIGKILL of a worker while nothing runs; the first call finds it dead"},
    {FaultKind::kKillStarting, "kill_starting", 3, Needs::kNothing,
     "SIGKILL of a worker, and again while it starts"},
    {FaultKind::kKillTwo, "kill_two", 8, Needs::kTwoSlices,
     "SIGKILL of two workers of different shards at once"},
    {FaultKind::kCrash, "crash", 4, Needs::kNothing,
     "SIGSEGV in a worker, as by a bug of a kernel"},
    {FaultKind::kStop, "stop", 8, Needs::kNothing,
     "SIGSTOP of a worker for 10 ms to 5 s, then SIGCONT: its late answers must not count"},
    {FaultKind::kStopKill, "stop_kill", 3, Needs::kNothing, "SIGSTOP of a worker, then SIGKILL"},
    {FaultKind::kSlow, "slow", 3, Needs::kNothing,
     "a worker gets a tenth of a CPU, as by a quota, for 0.3 to 2 s"},
    {FaultKind::kRollingRestart, "rolling_restart", 2, Needs::kNothing,
     "SIGTERM to every worker, one after the other, each exit status 0, under load"},
    {FaultKind::kAbort, "abort", 4, Needs::kNothing,
     "running streams are aborted, or their client hangs up"},
    {FaultKind::kKillFrontend, "kill_frontend", 3, Needs::kTwoFrontends,
     "SIGKILL of a frontend; workers serve the others on, and the next one"},
    {FaultKind::kCut, "cut", 4, Needs::kProxy, "connections to a worker are reset"},
    {FaultKind::kSwallow, "swallow", 3, Needs::kProxy,
     "connections to a worker stay open and carry nothing for 10 ms to 5 s"},
    {FaultKind::kRefuse, "refuse", 2, Needs::kProxy,
     "connections to a worker are reset and new ones refused for 10 ms to 2 s"},
    {FaultKind::kLoss, "loss", 2, Needs::kLink, "1 to 30 % of the packets of a host are lost"},
    {FaultKind::kDelay, "delay", 2, Needs::kLink, "packets of a host take 1 to 100 ms longer"},
    {FaultKind::kDuplicate, "duplicate", 2, Needs::kLink, "packets of a host arrive twice"},
    {FaultKind::kReorder, "reorder", 2, Needs::kLink, "packets of a host overtake each other"},
    {FaultKind::kPartition, "partition", 3, Needs::kLink, "no packet to or from a host"},
    {FaultKind::kPartitionIn, "partition_in", 2, Needs::kLink, "no packet reaches a host"},
    {FaultKind::kPartitionOut, "partition_out", 2, Needs::kLink, "no packet leaves a host"},
    {FaultKind::kHalfOpen, "half_open", 2, Needs::kLink,
     "a worker is killed and restarted while its host is cut off: old connections are half open"},
    {FaultKind::kOutage, "outage", 2, Needs::kNothing,
     "SIGKILL of all replicas of a shard: requests fail, frontends stay up and recover"},
    {FaultKind::kNan, "nan", 3, Needs::kBf16,
     "half of a worker's weights turn to NaN, as by broken memory, for 10 ms to 2 s"},
    {FaultKind::kScribble, "scribble", 4, Needs::kShm,
     "epochs, sequences and slot numbers in shared memory are overwritten while their reader is "
     "stopped"},
    {FaultKind::kFlood, "flood", 3, Needs::kShm,
     "another client fills its ring and a worker's queue, and goes"},
};

}  // namespace

absl::Span<const FaultInfo> FaultMenu() { return kMenu; }

const FaultInfo& InfoOf(FaultKind kind) {
  for (const FaultInfo& fault : kMenu) {
    if (fault.kind == kind) return fault;
  }
  ATELIER_CHECK(false);
  return kMenu[0];
}

const FaultInfo* FindFault(absl::string_view name) {
  for (const FaultInfo& fault : kMenu) {
    if (fault.name == name) return &fault;
  }
  return nullptr;
}

int KillsOf(FaultKind kind, const ClusterShape& shape) {
  switch (kind) {
    case FaultKind::kKill:
    case FaultKind::kKillIdle:
    case FaultKind::kCrash:
    case FaultKind::kStopKill:
    case FaultKind::kKillFrontend:
    case FaultKind::kHalfOpen:
      return 1;
    case FaultKind::kKillStarting:
    case FaultKind::kKillTwo:
      return 2;
    case FaultKind::kOutage:
      return shape.replicas;
    default:
      return 0;
  }
}

std::string Obstacle(const FaultInfo& fault, const ClusterShape& shape) {
  switch (fault.needs) {
    case Needs::kNothing:
      return "";
    case Needs::kTwoSlices:
      return shape.slices >= 2 ? "" : "it takes two slices";
    case Needs::kTwoFrontends:
      return shape.frontends >= 2 ? "" : "it takes two frontends";
    case Needs::kProxy:
      return shape.replicas >= 2 ? "" : "it takes two replicas: the second is behind the proxy";
    case Needs::kShm:
      return shape.frontends >= 2 && shape.replicas >= 2 ? "" : "it takes two of each";
    case Needs::kBf16:
      if (!shape.bf16) return "it takes weights in bf16, which can be NaN";
      return shape.replicas >= 2 ? "" : "it takes two replicas";
    case Needs::kLink:
      return shape.link ? "" : "there is no second host";
  }
  return "";
}

std::string MenuText() {
  std::string text;
  for (const FaultInfo& fault : kMenu) {
    absl::StrAppend(&text, absl::StrFormat("%-16s %s\n", fault.name, fault.what));
  }
  return text;
}

}  // namespace atelier::faults
