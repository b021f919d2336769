#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/dtype.h"

namespace atelier {

// How the experts of `checkpoint` are kept: as `requested`, or, where nothing is, in the published
// precision (floats as BF16). INVALID_ARGUMENT naming both methods when quantised experts are asked
// for in another one: their rounding would be rounded again. Errors as FindExpert's.
absl::StatusOr<Method> ChooseMethod(const Checkpoint& checkpoint, std::optional<Method> requested);

// Whether `matrix` can be packed as `method`: floats as any method that floats can be turned into,
// published codes as their own. UNIMPLEMENTED naming the tensor otherwise: experts of one
// checkpoint in several methods.
absl::Status CheckPublishedAs(const ExpertMatrix& matrix, Method method, bool quantised);

}  // namespace atelier
