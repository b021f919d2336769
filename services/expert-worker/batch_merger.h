#pragma once

#include <vector>

#include "libs/kernels/aligned_buffer.h"
#include "services/expert-worker/batcher.h"
#include "services/expert-worker/layer_batch.h"

namespace atelier {

// Lays the rows of several calls of one layer one after the other. A single call is passed on
// without a copy. Owns the memory of the merged batch, which it reuses; not thread-safe.
class BatchMerger {
 public:
  // In the order of `calls`, which is changed: those with quantised rows go last. Valid until the
  // next call of Merge, and while `calls` live. REQUIRES: at least one call; all of one layer and
  // hidden size, quantised rows of one form.
  LayerBatch Merge(std::vector<QueuedCall>& calls);

 private:
  TokenBatch MergeRows(const std::vector<QueuedCall>& calls);
  Routing MergeRouting(const std::vector<QueuedCall>& calls);

  AlignedBuffer<uint8_t> rows_;  // of BFloat16
  AlignedBuffer<int8_t> codes_;
  AlignedBuffer<float> scales_;
  AlignedBuffer<int32_t> expert_ids_;
  AlignedBuffer<float> weights_;
};

// The rows [row_begin, row_begin + num_rows) of `sums` [*, hidden] as bytes of the wire.
// REQUIRES: dtype is kF32 or kBF16.
std::string EncodeSums(const float* sums, int row_begin, int num_rows, int hidden, DType dtype);

// Of rows [row_begin, row_begin + num_rows): those with a NaN or an infinity in any of `sums`.
int CountNonFiniteRows(const std::vector<float*>& sums, int row_begin, int num_rows, int hidden);

}  // namespace atelier
