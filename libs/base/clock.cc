#include "libs/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace atelier {

absl::Time SystemClock::Now() {
  // Steady time anchored once at the wall clock: comparable with absl::Now() to within the drift
  // since start, and it never jumps when someone sets the clock.
  static const absl::Time wall_start = absl::Now();
  static const auto steady_start = std::chrono::steady_clock::now();
  return wall_start + absl::FromChrono(std::chrono::steady_clock::now() - steady_start);
}

}  // namespace atelier
