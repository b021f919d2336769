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
  // Valid until the next call of Merge, and while `calls` live. REQUIRES: at least one call; all of
  // one layer and hidden size.
  LayerBatch Merge(const std::vector<QueuedCall>& calls);

 private:
  AlignedBuffer<uint8_t> rows_;  // of BFloat16
  AlignedBuffer<int32_t> expert_ids_;
  AlignedBuffer<float> weights_;
};

// The rows [row_begin, row_begin + num_rows) of `sums` [*, hidden] as bytes of the wire.
// REQUIRES: dtype is kF32 or kBF16.
std::string EncodeSums(const float* sums, int row_begin, int num_rows, int hidden, DType dtype);

// Of rows [row_begin, row_begin + num_rows): those with a NaN or an infinity in any of `sums`.
int CountNonFiniteRows(const std::vector<float*>& sums, int row_begin, int num_rows, int hidden);

}  // namespace atelier
