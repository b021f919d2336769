#pragma once

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atelier {

// Allows extra calls as a share of all calls, so that slow replicas do not get twice the load.
// Thread-safe.
class HedgeBudget {
 public:
  // `share` of calls: 0.05 = one extra call per twenty. A few may be spent in a row.
  explicit HedgeBudget(double share) : share_(share), saved_(share > 0 ? 1.0 : 0.0) {}

  void CountCall() {
    absl::MutexLock lock(&mutex_);
    saved_ = std::min(saved_ + share_, kMaxSaved);
  }
  // False when an extra call would exceed the budget.
  bool Spend() {
    absl::MutexLock lock(&mutex_);
    if (saved_ < 1.0) return false;
    saved_ -= 1.0;
    return true;
  }

 private:
  static constexpr double kMaxSaved = 10.0;

  const double share_;
  absl::Mutex mutex_;
  double saved_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
