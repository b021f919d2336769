#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/check.h"

namespace atelier {

// Counts calls in flight, so that what they refer to can be destroyed after the last. Thread-safe.
class CallCounter {
 public:
  void Enter() {
    absl::MutexLock lock(&mutex_);
    ++calls_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    ATELIER_CHECK(calls_ > 0);
    --calls_;
  }
  // Blocks until every call that entered has left.
  void AwaitNone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* calls) { return *calls == 0; }, &calls_));
  }

 private:
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace atelier
