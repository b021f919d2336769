#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/dtype.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {

// How the experts of `checkpoint` are kept, by layer: published codes as they are, floats as
// `requested`, or as BF16 where nothing is. INVALID_ARGUMENT naming both methods when quantised
// experts are asked for in another one: their rounding would be rounded again. Errors as
// FindExpert's.
absl::StatusOr<LayerMethods> ChooseMethods(const Checkpoint& checkpoint,
                                           std::optional<Method> requested);

// Whether `expert` is published like `first`, the layer's expert 0, which chose the layer's
// methods. UNIMPLEMENTED naming the tensor otherwise.
absl::Status CheckPublishedAlike(const ExpertTensors& first, const ExpertTensors& expert);

}  // namespace atelier
