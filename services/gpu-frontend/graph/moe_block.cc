#include "services/gpu-frontend/graph/moe_block.h"

#include "libs/base/status_macros.h"
#include "services/gpu-frontend/graph/dense_ffn.h"

namespace atelier {
namespace {

RouteArgs MakeRouteArgs(const LayerContext& context, const RouterWeights& weights) {
  const MoeConfig& moe = context.config.moe;
  RouteArgs args{};
  args.logits = context.space.router_logits->As<float>();
  args.correction_bias =
      weights.correction_bias == nullptr ? nullptr : weights.correction_bias->As<float>();
  args.ids = context.space.expert_ids->As<int32_t>();
  args.weights = context.space.expert_weights->As<float>();
  args.rows = context.batch.rows;
  args.experts = moe.num_experts;
  args.top_k = moe.top_k;
  args.sigmoid = moe.scoring == RouterScoring::kSigmoid;
  args.normalize_weights = moe.normalize_weights;
  args.normalize_epsilon = static_cast<float>(moe.normalize_epsilon);
  args.scaling_factor = static_cast<float>(moe.routed_scaling_factor);
  args.num_groups = moe.num_groups;
  args.top_k_groups = moe.top_k_groups;
  return args;
}

void QueueSharedExpert(const LayerContext& context, const LayerWeights& weights) {
  QueueFfn(context, weights.ffn);
  if (weights.shared_gate == nullptr) return;
  Workspace& space = context.space;
  const int rows = context.batch.rows, hidden = context.config.hidden_size;
  context.stream.RouterLogits({space.normed->As<float>(), weights.shared_gate->As<float>(),
                               space.shared_gate->As<float>(), rows, hidden, 1});
  context.stream.GateRows(
      {space.block_out->As<float>(), space.shared_gate->As<float>(), rows, hidden});
}

}  // namespace

StageHistograms::StageHistograms(FrontendMetrics& metrics)
    : attention(metrics.StageSeconds(Stage::kAttention)),
      router(metrics.StageSeconds(Stage::kRouter)),
      workers(metrics.StageSeconds(Stage::kWorkers)),
      shared(metrics.StageSeconds(Stage::kShared)),
      dense(metrics.StageSeconds(Stage::kDense)),
      head(metrics.StageSeconds(Stage::kHead)) {}

void MoeBlock::QueueRouter(const LayerContext& context, const LayerWeights& weights) {
  Workspace& space = context.space;
  DeviceStream& stream = context.stream;
  const ModelConfig& config = context.config;
  const int rows = context.batch.rows;
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(config.hidden_size);
  const size_t choices = static_cast<size_t>(rows) * static_cast<size_t>(config.moe.top_k);
  stream.RmsNorm({space.residual->As<float>(), weights.post_attention_norm->As<float>(),
                  space.normed->As<float>(), rows, config.hidden_size,
                  static_cast<float>(config.rms_norm_eps)});
  stream.ToBFloat16({space.normed->As<float>(), space.wire_rows->As<BFloat16>(), values});
  stream.RouterLogits({space.normed->As<float>(), weights.router.weight->As<float>(),
                       space.router_logits->As<float>(), rows, config.hidden_size,
                       config.moe.num_experts});
  stream.Route(MakeRouteArgs(context, weights.router));
  stream.Copy(space.h_wire_rows->data(), space.wire_rows->data(), values * sizeof(BFloat16));
  stream.Copy(space.h_expert_ids->data(), space.expert_ids->data(), choices * sizeof(int32_t));
  stream.Copy(space.h_expert_weights->data(), space.expert_weights->data(),
              choices * sizeof(float));
  stream.Record(*routed_);
}

absl::StatusOr<std::unique_ptr<ExpertsInFlight>> MoeBlock::Begin(const LayerContext& context,
                                                                 int layer) {
  Workspace& space = context.space;
  const TokenBatch tokens{context.batch.rows, context.config.hidden_size,
                          space.h_wire_rows->As<BFloat16>()};
  const Routing routing{context.batch.rows, context.config.moe.top_k,
                        space.h_expert_ids->As<int32_t>(), space.h_expert_weights->As<float>()};
  return experts_.Begin(layer, tokens, routing, context.batch.prefill);
}

absl::Status MoeBlock::Run(const LayerContext& context, int layer, const LayerWeights& weights) {
  Workspace& space = context.space;
  const size_t values =
      static_cast<size_t>(context.batch.rows) * static_cast<size_t>(context.config.hidden_size);
  {
    StageTimer timer(stages_.router, clock_);
    QueueRouter(context, weights);
    ATELIER_RETURN_IF_ERROR(routed_->Synchronize());
  }
  const absl::Time sent = clock_.Now();
  ATELIER_ASSIGN_OR_RETURN(const std::unique_ptr<ExpertsInFlight> in_flight, Begin(context, layer));
  if (weights.ffn.gate_up != nullptr) {
    StageTimer timer(stages_.shared, clock_);
    QueueSharedExpert(context, weights);
  }
  // h_routed is free: the copy out of it in the layer before precedes this layer's `routed_` on the
  // stream.
  ATELIER_RETURN_IF_ERROR(in_flight->Wait(space.h_routed->As<float>()));
  stages_.workers.Observe(absl::ToDoubleSeconds(clock_.Now() - sent));
  context.stream.Copy(space.routed->data(), space.h_routed->data(), values * sizeof(float));
  if (weights.ffn.gate_up != nullptr) {
    context.stream.Add({space.routed->As<float>(), space.block_out->As<float>(), values});
  }
  context.stream.Add({space.residual->As<float>(), space.routed->As<float>(), values});
  return absl::OkStatus();
}

}  // namespace atelier
