#pragma once

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace atelier::faults {

// Times in which a frontend's streams may end early, because a fault took away what they need.
// Thread-safe.
class Excuses {
 public:
  explicit Excuses(int frontends) : frontends_(static_cast<size_t>(frontends)) {}

  void Open(int frontend) {
    absl::MutexLock lock(&mutex_);
    ++frontends_[static_cast<size_t>(frontend)].open;
  }
  void Close(int frontend) {
    absl::MutexLock lock(&mutex_);
    Frontend& f = frontends_[static_cast<size_t>(frontend)];
    --f.open;
    f.last_closed = absl::Now();
  }
  void OpenAll() {
    for (size_t i = 0; i < frontends_.size(); ++i) Open(static_cast<int>(i));
  }
  void CloseAll() {
    for (size_t i = 0; i < frontends_.size(); ++i) Close(static_cast<int>(i));
  }
  // For a stream that ran from `begin` until now.
  bool Cover(int frontend, absl::Time begin) const {
    absl::MutexLock lock(&mutex_);
    const Frontend& f = frontends_[static_cast<size_t>(frontend)];
    return f.open > 0 || f.last_closed >= begin;
  }

 private:
  struct Frontend {
    int open = 0;
    absl::Time last_closed = absl::InfinitePast();
  };
  mutable absl::Mutex mutex_;
  std::vector<Frontend> frontends_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier::faults
