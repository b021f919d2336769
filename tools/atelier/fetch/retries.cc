#include "tools/atelier/fetch/retries.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/atelier/fetch/exchange.h"

namespace atelier {

absl::Duration WaitBefore(const RetryPolicy& policy, int attempt, double random) {
  constexpr int kMaxDoublings = 30;
  const int doublings = std::clamp(attempt - 2, 0, kMaxDoublings);
  const absl::Duration whole =
      std::min(policy.first_wait * (int64_t{1} << doublings), policy.max_wait);
  return whole * (1 - random / 2);
}

absl::Status Retries::Run(const std::function<Attempt()>& attempt) {
  int failures = 0;
  while (true) {
    const Attempt result = attempt();
    if (result.status.ok() || !IsRetryable(result.status) || stopped_()) return result.status;
    failures = result.progressed ? 1 : failures + 1;
    if (failures >= policy_.max_attempts) {
      return absl::Status(result.status.code(), absl::StrCat(result.status.message(), " (after ",
                                                             failures, " attempts)"));
    }
    if (result.retry_after > policy_.max_retry_after) {
      return absl::Status(result.status.code(),
                          absl::StrCat(result.status.message(), "; it asks to come back in ",
                                       absl::FormatDuration(result.retry_after)));
    }
    const double random = std::uniform_real_distribution<double>()(random_);
    sleep_(std::max(WaitBefore(policy_, failures + 1, random), result.retry_after));
    if (stopped_()) return result.status;
  }
}

}  // namespace atelier
