#pragma once

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/log.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// Where the process is: starting → loading → serving → draining → stopped, never back; states may
// be skipped. The only place that changes it. Thread-safe; owned by the worker.
class Lifecycle {
 public:
  // Told of every change, in order, before Advance returns. Must not call back into the Lifecycle.
  using Observer = std::function<void(WorkerState)>;

  explicit Lifecycle(const Logger& logger) : logger_(logger) {}

  // Adds an observer and tells it the current state at once.
  void Observe(Observer observer);
  // True if this call made the change; false when `next` or a later state was reached already.
  bool Advance(WorkerState next);

  WorkerState state() const;
  // OK while serving; else UNAVAILABLE with the state, for readiness and for calls that come early
  // or late.
  absl::Status Ready() const;

 private:
  const Logger& logger_;
  mutable absl::Mutex mutex_;
  WorkerState state_ ABSL_GUARDED_BY(mutex_) = WorkerState::kStarting;
  std::vector<Observer> observers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
