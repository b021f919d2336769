#include "services/expert-worker/lifecycle.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace atelier {

void Lifecycle::Observe(Observer observer) {
  absl::MutexLock lock(&mutex_);
  observer(state_);
  observers_.push_back(std::move(observer));
}

bool Lifecycle::Advance(WorkerState next) {
  absl::MutexLock lock(&mutex_);
  if (next <= state_) return false;
  logger_.Info("worker_state",
               {Kv("from", WorkerStateName(state_)), Kv("to", WorkerStateName(next))});
  state_ = next;
  for (const Observer& observer : observers_) observer(next);
  return true;
}

WorkerState Lifecycle::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

absl::Status Lifecycle::Ready() const {
  const WorkerState now = state();
  if (now == WorkerState::kServing) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the worker is ", WorkerStateName(now)));
}

}  // namespace atelier
