#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier {

// Whether tensors of a quantised form stand where "<name>.weight" would (experts alone), or where
// the fused tensors of a layer would ("<prefix>down_proj"), by the config's format.
bool HasQuantMatrix(const Checkpoint& checkpoint, absl::string_view name);
bool HasFusedQuantMatrices(const Checkpoint& checkpoint, absl::string_view prefix);

// The quantised matrix [rows, columns] of tensors "<name>.…". Every dtype, shape and relation is
// checked, so that its source reads within the mapped files whatever they hold. Errors name file
// and tensor: NOT_FOUND (absent scales), INVALID_ARGUMENT (shape, dtype, values that contradict the
// config), UNIMPLEMENTED (what the kernels have no method for).
absl::StatusOr<PublishedMatrix> FindQuantMatrix(const Checkpoint& checkpoint,
                                                absl::string_view name, int rows, int columns);

// Expert `expert` out of the tensors "<prefix>gate_up_proj_blocks", "…_scales", "<prefix>down_…"
// that hold a whole layer; rows of gate and up alternate.
absl::StatusOr<ExpertTensors> FindFusedQuantExpert(const Checkpoint& checkpoint,
                                                   absl::string_view prefix, int expert);

}  // namespace atelier
