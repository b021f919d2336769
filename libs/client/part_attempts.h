#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/client/failover_options.h"
#include "libs/client/hedge_budget.h"
#include "libs/client/replica_health.h"
#include "libs/client/worker_set.h"

namespace atelier {

// One part of a call and the replicas that were asked for it: says whom to ask next, and when. No
// I/O and no clock; what it learns of a replica it tells the health. Thread-compatible.
class PartAttempts {
 public:
  struct Policy {
    const FailoverOptions& options;
    ReplicaHealth& health;
    HedgeBudget& budget;
  };

  enum class Why { kFirst, kFailover, kNotFinite, kLate, kStalled };

  // What to do now, exactly one of: ask `worker` because of `why`; take the first answer, which is
  // not finite, after all; give up with Error(); else wait until something is answered, but no
  // longer than `until`. And beside it, to ask a worker for a sign of life.
  struct Step {
    std::optional<size_t> worker;
    Why why = Why::kFirst;
    std::optional<size_t> ask_for_sign;
    bool take_not_finite = false;
    bool give_up = false;
    absl::Time until = absl::InfiniteFuture();
  };

  // `replicas` may be asked, the preferred one first; of so many rows; until `deadline`.
  PartAttempts(std::vector<size_t> replicas, int rows, absl::Time deadline, const Policy& policy)
      : replicas_(std::move(replicas)), rows_(rows), deadline_(deadline), policy_(policy) {}

  Step Next(absl::Time now, const Routes& routes);

  // `worker` is asked now; the attempt's number, which counts from 0.
  size_t Asked(size_t worker, const Routes& routes, absl::Time now);
  // What became of an attempt. An error of the request itself ends the part.
  void Failed(size_t attempt, const absl::Status& error, absl::Time now);
  void NotFinite(size_t attempt);
  // Those that were asked before it and have not answered, or not with numbers, were outdone.
  void Answered(size_t attempt, absl::Time now);

  size_t WorkerOf(size_t attempt) const { return attempts_[attempt].worker; }
  // Whose failure or lateness a new attempt makes up for.
  size_t LastWorker() const { return attempts_.back().worker; }
  // Why nothing can answer; OK when nobody could be asked at all.
  absl::Status Error() const;

 private:
  enum class State { kAsked, kFailed, kNotFinite };
  struct Attempt {
    size_t worker = 0;
    uint64_t connection = 0;
    absl::Time asked;
    State state = State::kAsked;
    bool hedge_denied = false;
    bool stalled = false;
    absl::Time next_sign = absl::InfinitePast();  // when to ask for one
    std::optional<absl::Time> sign_asked;         // and not given yet
    absl::Status error;
  };

  // The replica to ask that was not asked yet on the connection that it has now.
  std::optional<size_t> Untried(const Routes& routes) const;
  bool WasAsked(size_t worker, uint64_t connection) const;
  Step NextWhileAsked(Attempt& latest, size_t other, absl::Time now);
  // When the attempt's worker is to be asked for a sign of life, or will have been silent too long.
  absl::Time NextOfSigns(Attempt& attempt, absl::Duration late, absl::Time now) const;
  Step NextWithNobody(absl::Time now);

  std::vector<size_t> replicas_;
  int rows_;
  absl::Time deadline_;
  Policy policy_;
  std::vector<Attempt> attempts_;
  bool refused_ = false;  // by an error of the request itself
  std::optional<absl::Time> nobody_since_;
};

}  // namespace atelier
