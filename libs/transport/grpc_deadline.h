#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"

namespace atelier {

// A gRPC deadline (wall clock) on `clock`; at most `longest` away, also where the call has none.
inline absl::Time FromGrpcDeadline(std::chrono::system_clock::time_point deadline, Clock& clock,
                                   absl::Duration longest) {
  return clock.Now() + std::min(absl::FromChrono(deadline) - absl::Now(), longest);
}

// The gRPC deadline that is `timeout` from now.
inline std::chrono::system_clock::time_point ToGrpcDeadline(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

}  // namespace atelier
