#pragma once

#include <cstdint>
#include <functional>
#include <random>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace atelier {

struct RetryPolicy {
  int max_attempts = 8;  // without a byte of progress
  absl::Duration first_wait = absl::Milliseconds(500);
  absl::Duration max_wait = absl::Seconds(30);
  absl::Duration max_retry_after = absl::Minutes(5);  // that a server may ask for
};

// Before attempt `attempt` (2 = the first retry): doubles from one to the next, and a random half
// of it is left out, so that many clients do not come back together. `random` in [0, 1).
absl::Duration WaitBefore(const RetryPolicy& policy, int attempt, double random);

// Runs attempts of something until it is done or hopeless. Not thread-safe. Blocks.
class Retries {
 public:
  // `sleep` waits; it may return early, and the loop ends when `stopped` is true then.
  Retries(const RetryPolicy& policy, std::function<void(absl::Duration)> sleep,
          std::function<bool()> stopped, uint64_t seed)
      : policy_(policy), sleep_(std::move(sleep)), stopped_(std::move(stopped)), random_(seed) {}

  struct Attempt {
    absl::Status status;
    bool progressed = false;     // counts anew
    absl::Duration retry_after;  // that the server asks for; 0 = it does not
  };
  // The status of the last attempt, with the number of attempts if they did not help.
  absl::Status Run(const std::function<Attempt()>& attempt);

 private:
  const RetryPolicy policy_;
  const std::function<void(absl::Duration)> sleep_;
  const std::function<bool()> stopped_;
  std::mt19937_64 random_;
};

}  // namespace atelier
