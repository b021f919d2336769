#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tests/e2e/faults/cluster.h"
#include "tests/e2e/faults/excuses.h"
#include "tests/e2e/faults/fault_schedule.h"
#include "tests/e2e/faults/link.h"
#include "tests/e2e/faults/load.h"

namespace atelier::faults {

// Does the faults to a cluster under load, and mends them. For the main thread.
class Nemesis {
 public:
  // `link` may be null where the cluster has none.
  Nemesis(Cluster& cluster, Load& load, Excuses& excuses, Link* link)
      : cluster_(cluster), load_(load), excuses_(excuses), link_(link) {}

  // Waits as planned, does the fault, mends it and waits until the cluster has healed. Not OK when
  // a process did what it must not: it ended by itself, or did not recover.
  absl::Status Inject(const PlannedFault& fault);

  int64_t kills() const { return kills_; }

 private:
  absl::Status Do(const PlannedFault& fault);
  absl::Status DoToWorker(const PlannedFault& fault);
  void DoToLink(const PlannedFault& fault);

  void Kill(ServiceProcess& process);
  absl::Status KillWhileStarting(const PlannedFault& fault);
  absl::Status RestartAll(const PlannedFault& fault);
  absl::Status KillFrontend(const PlannedFault& fault);
  absl::Status HalfOpen(const PlannedFault& fault);
  absl::Status Outage(const PlannedFault& fault);
  absl::Status Scribble(const PlannedFault& fault);
  void Slow(const PlannedFault& fault);

  Cluster& cluster_;
  Load& load_;
  Excuses& excuses_;
  Link* const link_;
  int64_t kills_ = 0;
};

}  // namespace atelier::faults
