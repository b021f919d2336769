#pragma once

#include "absl/time/time.h"

namespace atelier {

// Source of time. Inject it; tests use libs/testing/fake_clock.h. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic where the system has it; only differences and comparisons mean anything across calls.
  virtual absl::Time Now() = 0;
};

// The process's real clock. Stateless.
class SystemClock final : public Clock {
 public:
  absl::Time Now() override;
};

}  // namespace atelier
