#include "services/gpu-frontend/graph/gqa_attention.h"

namespace atelier {
namespace {

// Where q, k and v of a row lie in the stacked projection.
struct QkvLayout {
  explicit QkvLayout(const AttentionConfig& shape)
      : k(static_cast<size_t>(shape.num_heads) * static_cast<size_t>(shape.head_dim)),
        v(k + static_cast<size_t>(shape.num_kv_heads) * static_cast<size_t>(shape.head_dim)),
        stride(v + static_cast<size_t>(shape.num_kv_heads) * static_cast<size_t>(shape.head_dim)) {}
  size_t k, v, stride;
};

const float* OrNull(const std::unique_ptr<DeviceBuffer>& buffer) {
  return buffer == nullptr ? nullptr : buffer->As<float>();
}

void QueueHeadNorms(const LayerContext& context, const AttentionWeights& weights,
                    const QkvLayout& layout) {
  if (weights.q_norm == nullptr) return;
  const AttentionConfig& shape = context.config.attention;
  float* qkv = context.space.qkv->As<float>();
  const float eps = static_cast<float>(context.config.rms_norm_eps);
  const int rows = context.batch.rows;
  const auto norm = [&](float* x, DeviceBuffer& weight, int heads) {
    // All heads together are one wide head.
    const bool whole = shape.qk_norm == QkNorm::kWhole;
    const int width = whole ? heads * shape.head_dim : shape.head_dim;
    context.stream.HeadNorm(
        {x, layout.stride, weight.As<float>(), rows, whole ? 1 : heads, width, eps});
  };
  norm(qkv, *weights.q_norm, shape.num_heads);
  norm(qkv + layout.k, *weights.k_norm, shape.num_kv_heads);
}

}  // namespace

void QueueGqaAttention(const LayerContext& context, const LayerWeights& weights,
                       const KvCacheView& cache) {
  const AttentionConfig& shape = context.config.attention;
  const int rows = context.batch.rows, hidden = context.config.hidden_size;
  const size_t width = static_cast<size_t>(hidden);
  const QkvLayout layout(shape);
  Workspace& space = context.space;
  DeviceStream& stream = context.stream;
  float* qkv = space.qkv->As<float>();

  stream.RmsNorm({space.residual->As<float>(), weights.input_norm->As<float>(),
                  space.normed->As<float>(), rows, hidden,
                  static_cast<float>(context.config.rms_norm_eps)});
  stream.Linear({space.normed->As<float>(), width, weights.attention.qkv.get(),
                 OrNull(weights.attention.qkv_bias), qkv, layout.stride, rows});
  QueueHeadNorms(context, weights.attention, layout);
  // q and k lie side by side, so one call rotates the heads of both.
  stream.Rope({qkv, layout.stride, space.cos_sin->As<float>(), rows,
               shape.num_heads + shape.num_kv_heads, shape.head_dim, shape.rotary_dim,
               shape.interleaved_rope});
  stream.KvWrite(
      {qkv + layout.k, qkv + layout.v, layout.stride, space.slots->As<int64_t>(), cache, rows});
  stream.Attention({qkv, layout.stride, space.sequences->As<int32_t>(),
                    space.positions->As<int32_t>(), space.block_tables->As<int32_t>(),
                    context.batch.max_blocks, cache, space.attended->As<float>(), rows,
                    shape.num_heads});
  stream.Linear({space.attended->As<float>(), layout.k, weights.attention.output.get(),
                 OrNull(weights.attention.output_bias), space.block_out->As<float>(), width, rows});
  stream.Add({space.residual->As<float>(), space.block_out->As<float>(),
              static_cast<size_t>(rows) * width});
}

}  // namespace atelier
