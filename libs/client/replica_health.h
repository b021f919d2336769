#pragma once

#include <functional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/client/failover_options.h"
#include "libs/client/latency_history.h"

namespace atelier {

// How well each worker answers, beyond being connected: what a call may expect of it, and whether
// it is ejected, that is given no calls while other replicas live. Thread-safe; never blocks for
// long.
class ReplicaHealth {
 public:
  // Told when a worker is ejected (true) or trusted again. Must not call back.
  using Observer = std::function<void(size_t worker, bool ejected)>;

  ReplicaHealth(size_t num_workers, const FailoverOptions& options, Clock& clock,
                Observer observer);

  // It answered a call of so many rows.
  void Answered(size_t worker, int rows, absl::Duration latency);
  // It gave an error, or another replica that was asked later answered first.
  void Faulted(size_t worker);
  // It has not answered for so long that it may be frozen.
  void Stalled(size_t worker);
  // It was connected anew: a clean slate, but for its latencies.
  void Reconnected(size_t worker);

  // How long a call of so many rows may take at `asked` before it is late: by what `other`, which
  // would be asked instead, usually takes; where that is not known, by what `asked` itself takes.
  absl::Duration Patience(size_t asked, size_t other, int rows) const;
  // Those of `live` that are not ejected; all of them when too few would be left.
  std::vector<size_t> Trusted(const std::vector<size_t>& live) const;

  // True, once, when the worker's ejection is over: the caller asks it something that nobody waits
  // for, and says whether it was answered in time. Until then it stays ejected.
  bool TakeProbe(size_t worker);
  void ProbeEnded(size_t worker, bool well);

 private:
  struct State {
    LatencyHistory latency;
    int faults = 0;  // in a row
    bool ejected = false;
    bool probing = false;
    absl::Duration ejection;  // the last one's length
    absl::Time until = absl::InfinitePast();
  };

  void EjectLocked(size_t worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrustLocked(size_t worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FailoverOptions options_;
  Clock& clock_;
  const Observer observer_;
  mutable absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
