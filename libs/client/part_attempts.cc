#include "libs/client/part_attempts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"

namespace atelier {
namespace {

// How often a call that no replica can take looks for one that came back.
constexpr absl::Duration kLookInterval = absl::Milliseconds(5);

// Another replica would say the same.
bool IsOfTheRequest(const absl::Status& error) {
  return absl::IsInvalidArgument(error) || absl::IsOutOfRange(error) ||
         absl::IsUnimplemented(error);
}

}  // namespace

PartAttempts::Step PartAttempts::Next(absl::Time now, const Routes& routes) {
  Step step;
  if (refused_) {
    step.give_up = true;
    return step;
  }
  const auto asked = std::find_if(attempts_.rbegin(), attempts_.rend(), [](const Attempt& attempt) {
    return attempt.state == State::kAsked;
  });
  if (asked != attempts_.rend() && replicas_.size() == 1) return step;
  const std::optional<size_t> untried = Untried(routes);
  if (asked != attempts_.rend()) {
    return untried.has_value() ? NextWhileAsked(*asked, *untried, now) : step;
  }
  const auto not_finite =
      std::count_if(attempts_.begin(), attempts_.end(),
                    [](const Attempt& attempt) { return attempt.state == State::kNotFinite; });
  // Where two have no finite answer it is the model's, not a fault of theirs.
  if (untried.has_value() && now < deadline_ && not_finite < 2) {
    nobody_since_.reset();
    step.worker = untried;
    if (!attempts_.empty()) {
      const bool last = attempts_.back().state == State::kNotFinite;
      step.why = last ? Why::kNotFinite : Why::kFailover;
    }
    return step;
  }
  step.take_not_finite = not_finite > 0;
  return step.take_not_finite ? step : NextWithNobody(now);
}

PartAttempts::Step PartAttempts::NextWhileAsked(Attempt& latest, size_t other, absl::Time now) {
  Step step;
  const ReplicaHealth::Patience patience = policy_.health.PatienceWith(latest.worker, other, rows_);
  const absl::Time late = latest.asked + patience.late;
  const absl::Time stalled = latest.asked + patience.stalled;
  absl::Time sign = NextOfSigns(latest, patience.late, now);
  const bool silent = latest.sign_asked.has_value() && now >= sign;
  if (now >= stalled || silent) {
    if (!std::exchange(latest.stalled, true)) {
      silent ? policy_.health.Silent(latest.worker) : policy_.health.Stalled(latest.worker);
    }
    step.worker = other;
    step.why = Why::kStalled;
    return step;
  }
  if (now >= sign) {
    latest.sign_asked = now;
    step.ask_for_sign = latest.worker;
    sign = now + policy_.options.longest_silence;
  }
  if (now >= late && !latest.hedge_denied) {
    latest.hedge_denied = !policy_.budget.Spend();
    if (!latest.hedge_denied) {
      step.worker = other;
      step.why = Why::kLate;
      return step;
    }
  }
  step.until = std::min(sign, latest.hedge_denied ? stalled : late);
  return step;
}

absl::Time PartAttempts::NextOfSigns(Attempt& attempt, absl::Duration late, absl::Time now) const {
  const absl::Duration silence = policy_.options.longest_silence;
  if (attempt.sign_asked.has_value()) {
    if (policy_.health.LastHeard(attempt.worker) < *attempt.sign_asked) {
      return *attempt.sign_asked + silence;
    }
    attempt.sign_asked.reset();
    attempt.next_sign = now + silence;
  }
  return std::max(attempt.next_sign, attempt.asked + std::min(late, silence / 2));
}

// A worker that restarts, or whose connection broke, may be back in a moment.
PartAttempts::Step PartAttempts::NextWithNobody(absl::Time now) {
  Step step;
  const bool may_return = replicas_.size() > 1 && now < deadline_ &&
                          (attempts_.empty() || absl::IsUnavailable(attempts_.back().error));
  if (!nobody_since_.has_value()) nobody_since_ = now;
  step.give_up = !may_return || now >= *nobody_since_ + policy_.options.reconnect_grace;
  if (!step.give_up) step.until = now + kLookInterval;
  return step;
}

std::optional<size_t> PartAttempts::Untried(const Routes& routes) const {
  std::vector<size_t> live;
  for (const size_t worker : replicas_) {
    if (routes.Live(worker)) live.push_back(worker);
  }
  for (const size_t worker : policy_.health.Trusted(live)) {
    if (!WasAsked(worker, routes.connections[worker])) return worker;
  }
  for (const size_t worker : live) {
    if (!WasAsked(worker, routes.connections[worker])) return worker;
  }
  return std::nullopt;
}

bool PartAttempts::WasAsked(size_t worker, uint64_t connection) const {
  return std::any_of(attempts_.begin(), attempts_.end(), [&](const Attempt& attempt) {
    return attempt.worker == worker && attempt.connection == connection;
  });
}

size_t PartAttempts::Asked(size_t worker, const Routes& routes, absl::Time now) {
  Attempt attempt;
  attempt.worker = worker;
  attempt.connection = routes.connections[worker];
  attempt.asked = now;
  attempts_.push_back(std::move(attempt));
  return attempts_.size() - 1;
}

void PartAttempts::Failed(size_t attempt, const absl::Status& error, absl::Time now) {
  Attempt& failed = attempts_[attempt];
  failed.state = State::kFailed;
  failed.error = error;
  if (IsOfTheRequest(error)) {
    refused_ = true;
  } else if (now < deadline_) {
    policy_.health.Faulted(failed.worker);
  }
}

void PartAttempts::NotFinite(size_t attempt) { attempts_[attempt].state = State::kNotFinite; }

void PartAttempts::Answered(size_t attempt, absl::Time now) {
  const Attempt& answered = attempts_[attempt];
  policy_.health.Answered(answered.worker, rows_, now - answered.asked);
  for (size_t i = 0; i < attempts_.size(); ++i) {
    const State state = attempts_[i].state;
    const bool overtaken = state == State::kAsked && i < attempt;
    if (overtaken || state == State::kNotFinite) policy_.health.Faulted(attempts_[i].worker);
  }
}

absl::Status PartAttempts::Error() const {
  std::vector<std::string> messages;
  const absl::Status* last = nullptr;
  for (const Attempt& attempt : attempts_) {
    if (attempt.error.ok()) continue;
    messages.emplace_back(attempt.error.message());
    last = &attempt.error;
  }
  if (last == nullptr) return absl::OkStatus();
  return absl::Status(last->code(), absl::StrJoin(messages, "; "));
}

}  // namespace atelier
