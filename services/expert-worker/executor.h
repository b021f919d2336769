#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "services/expert-worker/layer_batch.h"

namespace atelier {

class ExpertStore;
class KernelTable;
class NodeArena;

// Runs the expert FFN of merged batches on the node's threads. One Forward at a time (the batcher's
// thread calls it); no allocation once the workspace has grown to the largest batch seen.
class Executor {
 public:
  virtual ~Executor() = default;

  // Weighted partial sums of every held shard: out[s] is [T, H] fp32 of shard s (index as in
  // Describe), overwritten, zero rows where a token has no expert here. Experts are added in
  // ascending id, so a row's bits do not depend on batch or threads. Returns the number of rows
  // with a NaN or an infinity in any shard. REQUIRES: the batch was validated (layer held, ids <
  // num_experts); rows that are quantised are so in the form of every gate and up of the layer.
  virtual int Forward(const LayerBatch& batch, const std::vector<float*>& out) = 0;
};

std::unique_ptr<Executor> CreateExecutor(const ExpertStore& store, const KernelTable& kernels,
                                         NodeArena& arena);

}  // namespace atelier
