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
  // It takes so long that something must be wrong with it.
  void Stalled(size_t worker);
  // It gave no sign of life either: frozen or cut off, which is as good as gone.
  void Silent(size_t worker);
  // It gave a sign of life.
  void Heard(size_t worker);
  // It was connected anew: a clean slate, but for its latencies. If that was our own wish, it has
  // to answer a probe first, which may be now.
  void Reconnected(size_t worker);

  // From when on a call of so many rows is late, or stalled, at a worker.
  struct Patience {
    absl::Duration late;
    absl::Duration stalled;
  };
  // By what `asked`, or `other`, which would be asked instead, usually takes, whichever is less.
  Patience PatienceWith(size_t asked, size_t other, int rows) const;
  // When it last gave a sign of life or an answer.
  absl::Time LastHeard(size_t worker) const;
  // Those of `live` that are not ejected. When too few would be left, ejections count only for
  // being silent, and when all are silent they count for nothing.
  std::vector<size_t> Trusted(const std::vector<size_t>& live) const;

  // True, once, when the worker's ejection is over: the caller asks it something that nobody waits
  // for, and says whether it was answered in time. Until then it stays ejected.
  bool TakeProbe(size_t worker);
  // True when it is to be connected anew: it gives signs of life, but has not answered several
  // probes, so that something must be wrong on the way of its calls.
  bool ProbeEnded(size_t worker, bool well);

 private:
  struct State {
    LatencyHistory latency;
    int faults = 0;  // in a row
    bool ejected = false;
    bool silent = false;  // only while ejected
    bool probing = false;
    absl::Time probed;             // last
    int failed_probes = 0;         // in a row, though it was heard
    bool to_be_connected = false;  // anew, by our wish
    absl::Time heard = absl::InfinitePast();
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
