#pragma once

#include "services/gpu-frontend/graph/layer_context.h"
#include "services/gpu-frontend/graph/weights.h"

namespace atelier {

// residual += o_proj(attention(norm(residual))): grouped-query attention with optional biases,
// per-head norm of q and k, and rotation of the first rotary_dim dims. Queues work only.
void QueueGqaAttention(const LayerContext& context, const LayerWeights& weights,
                       const KvCacheView& cache);

}  // namespace atelier
