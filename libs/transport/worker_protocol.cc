#include "libs/transport/worker_protocol.h"

namespace atelier {

absl::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kLoading:
      return "loading";
    case WorkerState::kServing:
      return "serving";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kStopped:
      return "stopped";
  }
  return "unknown";
}

}  // namespace atelier
