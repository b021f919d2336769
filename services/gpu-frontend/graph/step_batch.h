#pragma once

#include "absl/types/span.h"
#include "libs/device/device.h"
#include "services/gpu-frontend/engine/model_runner.h"
#include "services/gpu-frontend/graph/workspace.h"

namespace atelier {

// A step's tokens laid out as rows, sequence after sequence.
struct StepBatch {
  int rows = 0;        // T
  int max_blocks = 0;  // row length of the block tables of this step
  int num_logits = 0;
  bool prefill = false;  // some sequence brings more than one token
};

// Fills the host side of the workspace's step inputs and queues their copies. REQUIRES: the steps
// fit the limits that the workspace was made for, token ids are in the vocabulary, positions are
// covered by block tables whose blocks exist (checked: they come from the engine).
StepBatch UploadStep(absl::Span<const SequenceStep> steps, const StepLimits& limits, int block_size,
                     int num_blocks, Workspace& space, DeviceStream& stream);

}  // namespace atelier
