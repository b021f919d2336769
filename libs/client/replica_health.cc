#include "libs/client/replica_health.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

// Of the 95th percentile: what scheduling and a batch before ours may add on a worker that is well.
constexpr int kPatienceFactor = 2;
// Of the patience: from then on a replica is taken for broken, not for slow.
constexpr int kStallFactor = 4;
// Probes that fail in a row until the worker is connected anew.
constexpr int kProbesUntilReset = 3;

}  // namespace

absl::Status FailoverOptions::Validate() const {
  if (min_patience <= absl::ZeroDuration() || first_patience <= absl::ZeroDuration() ||
      min_stall <= absl::ZeroDuration() || longest_silence <= absl::ZeroDuration() ||
      first_ejection <= absl::ZeroDuration() || longest_ejection < first_ejection ||
      reconnect_grace < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "failover: times must be positive, and longest_ejection not below first_ejection");
  }
  if (!(hedge_budget >= 0 && hedge_budget <= 1 && panic_threshold >= 0 && panic_threshold <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("failover: hedge_budget=", hedge_budget,
                                                   " and panic_threshold=", panic_threshold,
                                                   " must be between 0 and 1"));
  }
  if (faults_until_ejection < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "failover: faults_until_ejection=", faults_until_ejection, " must be at least 1"));
  }
  return absl::OkStatus();
}

ReplicaHealth::ReplicaHealth(size_t num_workers, const FailoverOptions& options, Clock& clock,
                             Observer observer)
    : options_(options), clock_(clock), observer_(std::move(observer)), states_(num_workers) {}

void ReplicaHealth::Answered(size_t worker, int rows, absl::Duration latency) {
  absl::MutexLock lock(&mutex_);
  states_[worker].latency.Add(rows, latency);
  states_[worker].faults = 0;
  states_[worker].heard = clock_.Now();
  states_[worker].silent = false;
}

void ReplicaHealth::Faulted(size_t worker) {
  absl::MutexLock lock(&mutex_);
  if (++states_[worker].faults >= options_.faults_until_ejection) EjectLocked(worker);
}

void ReplicaHealth::Stalled(size_t worker) {
  absl::MutexLock lock(&mutex_);
  EjectLocked(worker);
}

void ReplicaHealth::Silent(size_t worker) {
  absl::MutexLock lock(&mutex_);
  EjectLocked(worker);
  states_[worker].silent = true;
}

void ReplicaHealth::Heard(size_t worker) {
  absl::MutexLock lock(&mutex_);
  states_[worker].heard = clock_.Now();
  states_[worker].silent = false;
}

absl::Time ReplicaHealth::LastHeard(size_t worker) const {
  absl::MutexLock lock(&mutex_);
  return states_[worker].heard;
}

// Calls that were under way when the worker was ejected add nothing to its time.
void ReplicaHealth::EjectLocked(size_t worker) {
  State& state = states_[worker];
  state.faults = 0;
  if (state.ejected) return;
  state.ejected = true;
  state.ejection = options_.first_ejection;
  state.until = clock_.Now() + state.ejection;
  observer_(worker, true);
}

void ReplicaHealth::TrustLocked(size_t worker) {
  State& state = states_[worker];
  state.faults = 0;
  state.probing = false;
  state.silent = false;
  state.failed_probes = 0;
  if (!std::exchange(state.ejected, false)) return;
  observer_(worker, false);
}

void ReplicaHealth::Reconnected(size_t worker) {
  absl::MutexLock lock(&mutex_);
  State& state = states_[worker];
  if (!std::exchange(state.to_be_connected, false)) return TrustLocked(worker);
  state.probing = false;
  state.until = clock_.Now();
}

ReplicaHealth::Patience ReplicaHealth::PatienceWith(size_t asked, size_t other, int rows) const {
  std::optional<LatencyHistory::Usual> usual;
  {
    absl::MutexLock lock(&mutex_);
    usual = states_[asked].latency.UsualFor(rows);
    const std::optional<LatencyHistory::Usual> others = states_[other].latency.UsualFor(rows);
    if (!usual.has_value() || (others.has_value() && others->p95 < usual->p95)) usual = others;
  }
  if (!usual.has_value()) return {options_.first_patience, kStallFactor * options_.first_patience};
  const absl::Duration patience = std::max(options_.min_patience, kPatienceFactor * usual->p95);
  // A guess that is too low costs a hedge, which the budget bounds; to be stalled costs more.
  const absl::Duration longest = std::max(options_.min_patience, options_.first_patience);
  return {usual->guessed ? std::min(patience, longest) : patience,
          std::max(options_.min_stall, kStallFactor * patience)};
}

std::vector<size_t> ReplicaHealth::Trusted(const std::vector<size_t>& live) const {
  std::vector<size_t> trusted;
  std::vector<size_t> heard;
  absl::MutexLock lock(&mutex_);
  for (const size_t worker : live) {
    if (!states_[worker].ejected) trusted.push_back(worker);
    if (!states_[worker].silent) heard.push_back(worker);
  }
  const double enough = options_.panic_threshold * static_cast<double>(live.size());
  if (!trusted.empty() && static_cast<double>(trusted.size()) >= enough) return trusted;
  return heard.empty() ? live : heard;
}

bool ReplicaHealth::TakeProbe(size_t worker) {
  absl::MutexLock lock(&mutex_);
  State& state = states_[worker];
  if (!state.ejected || state.probing || clock_.Now() < state.until) return false;
  state.probing = true;
  state.probed = clock_.Now();
  return true;
}

bool ReplicaHealth::ProbeEnded(size_t worker, bool well) {
  absl::MutexLock lock(&mutex_);
  State& state = states_[worker];
  if (!std::exchange(state.probing, false)) return false;
  if (well) {
    TrustLocked(worker);
    return false;
  }
  state.ejection = std::min(2 * state.ejection, options_.longest_ejection);
  state.until = clock_.Now() + state.ejection;
  if (state.heard < state.probed || ++state.failed_probes < kProbesUntilReset) return false;
  state.failed_probes = 0;
  state.to_be_connected = true;
  return true;
}

}  // namespace atelier
