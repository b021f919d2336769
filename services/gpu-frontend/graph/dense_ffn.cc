#include "services/gpu-frontend/graph/dense_ffn.h"

namespace atelier {

void QueueFfnOf(const LayerContext& context, const FfnWeights& weights, const float* x, int rows,
                float* out) {
  Workspace& space = context.space;
  const size_t hidden = static_cast<size_t>(context.config.hidden_size);
  const size_t width = static_cast<size_t>(weights.intermediate);
  context.stream.Linear(
      {x, hidden, weights.gate_up.get(), nullptr, space.gate_up->As<float>(), 2 * width, rows});
  context.stream.SwiGlu(
      {space.gate_up->As<float>(), space.activated->As<float>(), rows, weights.intermediate});
  context.stream.Linear(
      {space.activated->As<float>(), width, weights.down.get(), nullptr, out, hidden, rows});
}

void QueueFfn(const LayerContext& context, const FfnWeights& weights) {
  Workspace& space = context.space;
  QueueFfnOf(context, weights, space.normed->As<float>(), context.batch.rows,
             space.block_out->As<float>());
}

void QueueDenseBlock(const LayerContext& context, const LayerWeights& weights) {
  Workspace& space = context.space;
  const int hidden = context.config.hidden_size;
  context.stream.RmsNorm({space.residual->As<float>(), weights.post_attention_norm->As<float>(),
                          space.normed->As<float>(), context.batch.rows, hidden,
                          static_cast<float>(context.config.rms_norm_eps)});
  QueueFfn(context, weights.ffn);
  context.stream.Add({space.residual->As<float>(), space.block_out->As<float>(),
                      static_cast<size_t>(context.batch.rows) * static_cast<size_t>(hidden)});
}

}  // namespace atelier
