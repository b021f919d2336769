#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/time/time.h"

namespace atelier {

// Tokens per second over the last ten seconds, or since the first token where that is less (but at
// least one second). Not thread-safe.
class TokenRate {
 public:
  void Add(absl::Time now, int tokens) {
    Forget(now);
    if (tokens == 0) return;
    steps_.emplace_back(now, tokens);
    total_ += tokens;
  }

  double PerSecond(absl::Time now) {
    Forget(now);
    if (steps_.empty()) return 0;
    const absl::Duration span = std::max(now - steps_.front().first, absl::Seconds(1));
    return static_cast<double>(total_) / absl::ToDoubleSeconds(span);
  }

 private:
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  void Forget(absl::Time now) {
    while (!steps_.empty() && steps_.front().first < now - kWindow) {
      total_ -= steps_.front().second;
      steps_.pop_front();
    }
  }

  std::deque<std::pair<absl::Time, int>> steps_;
  int64_t total_ = 0;
};

}  // namespace atelier
