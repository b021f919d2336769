#pragma once

#include "absl/status/status.h"
#include "libs/model/expert_set.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// Everything that a request can get wrong about the worker it was sent to, before its memory is
// touched: FAILED_PRECONDITION for another process's epoch or another model's digest,
// INVALID_ARGUMENT naming field and value for the rest. The state is not looked at.
absl::Status CheckRequest(const ForwardRequest& request, const WorkerDescription& worker);

// FAILED_PRECONDITION naming token, position and value when a row is routed to an expert that the
// worker would hold but for `skipped`: its product would be missing in the sums. REQUIRES: a
// request that CheckRequest has passed.
absl::Status CheckNotSkipped(const ForwardRequest& request, const WorkerDescription& worker,
                             const ExpertSet& skipped);

}  // namespace atelier
