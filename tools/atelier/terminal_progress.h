#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/clock.h"

namespace atelier {

// Done, rate and time left, on one line of standard error that is written over; only for a person
// who looks on. Thread-safe. Cleared when destroyed.
class TerminalProgress {
 public:
  TerminalProgress(int64_t total, Clock& clock);
  ~TerminalProgress();

  // `found` was there already and says nothing of the rate.
  void Add(int64_t bytes, bool found);
  void Show();
  void Clear();

 private:
  void Print() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool shown_;
  const int64_t total_;
  Clock& clock_;
  const absl::Time start_;
  absl::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t made_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time printed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace atelier
