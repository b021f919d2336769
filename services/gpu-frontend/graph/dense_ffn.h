#pragma once

#include "services/gpu-frontend/graph/layer_context.h"
#include "services/gpu-frontend/graph/weights.h"

namespace atelier {

// out [rows, H] = down(silu(gate x) * (up x)) of x [rows, H]. Queues work only.
void QueueFfnOf(const LayerContext& context, const FfnWeights& weights, const float* x, int rows,
                float* out);

// block_out = down(silu(gate x) * (up x)) of the normed rows: a shared expert. Queues work only.
void QueueFfn(const LayerContext& context, const FfnWeights& weights);

// residual += FFN(norm(residual)): a layer without experts. Queues work only.
void QueueDenseBlock(const LayerContext& context, const LayerWeights& weights);

}  // namespace atelier
