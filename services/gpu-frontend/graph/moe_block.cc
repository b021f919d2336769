#include "services/gpu-frontend/graph/moe_block.h"

#include <algorithm>

#include "libs/base/status_macros.h"
#include "services/gpu-frontend/graph/dense_ffn.h"

namespace atelier {
namespace {

constexpr int32_t kSkippedExpert = -1;  // Routing's: no worker computes it

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

// Whether a worker has to compute anything at all.
bool AnyExpertLeft(const LayerContext& context) {
  const int32_t* ids = context.space.h_expert_ids->As<int32_t>();
  return std::any_of(ids, ids + context.batch.rows * context.config.moe.top_k,
                     [](int32_t id) { return id >= 0; });
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

std::vector<MoeBlock::ExpertRows> MoeBlock::TakeDeviceRows(const LayerContext& context,
                                                           const LayerWeights& weights) {
  std::vector<ExpertRows> taken;
  const auto top_k = static_cast<size_t>(context.config.moe.top_k);
  const size_t choices = static_cast<size_t>(context.batch.rows) * top_k;
  int32_t* ids = context.space.h_expert_ids->As<int32_t>();
  const float* factors = context.space.h_expert_weights->As<float>();
  std::vector<std::vector<size_t>> of_expert(weights.experts.size());
  for (size_t at = 0; at < choices && !of_expert.empty(); ++at) {
    const auto expert = static_cast<size_t>(ids[at]);
    if (weights.experts[expert].gate_up == nullptr) continue;
    of_expert[expert].push_back(at);
    ids[at] = kSkippedExpert;
  }
  size_t end = 0;
  for (size_t expert = 0; expert < of_expert.size(); ++expert) {
    if (of_expert[expert].empty()) continue;
    taken.push_back({expert, end, static_cast<int>(of_expert[expert].size())});
    for (const size_t at : of_expert[expert]) {
      context.space.h_device_indices->As<int32_t>()[end] = static_cast<int32_t>(at / top_k);
      context.space.h_device_weights->As<float>()[end++] = factors[at];
    }
  }
  return taken;
}

void MoeBlock::QueueDeviceExperts(const LayerContext& context, const LayerWeights& weights,
                                  const std::vector<ExpertRows>& rows) {
  Workspace& space = context.space;
  DeviceStream& stream = context.stream;
  const int hidden = context.config.hidden_size;
  const size_t choices = rows.back().begin + static_cast<size_t>(rows.back().count);
  if (weights.ffn.gate_up == nullptr) {
    stream.Zero(space.block_out->data(), static_cast<size_t>(context.batch.rows) *
                                             static_cast<size_t>(hidden) * sizeof(float));
  }
  stream.Copy(space.device_indices->data(), space.h_device_indices->data(),
              choices * sizeof(int32_t));
  stream.Copy(space.device_weights->data(), space.h_device_weights->data(),
              choices * sizeof(float));
  for (const ExpertRows& part : rows) {
    const int32_t* indices = space.device_indices->As<int32_t>() + part.begin;
    stream.GatherRows(
        {space.normed->As<float>(), indices, space.device_rows->As<float>(), part.count, hidden});
    QueueFfnOf(context, weights.experts[part.expert], space.device_rows->As<float>(), part.count,
               space.device_out->As<float>());
    stream.AddWeightedRows({space.device_out->As<float>(), indices,
                            space.device_weights->As<float>() + part.begin,
                            space.block_out->As<float>(), part.count, hidden});
  }
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
  // The buffers that the host writes from here on are free: the copies out of them in the layer
  // before precede this layer's `routed_` on the stream.
  const std::vector<ExpertRows> here = TakeDeviceRows(context, weights);
  const absl::Time sent = clock_.Now();
  std::unique_ptr<ExpertsInFlight> in_flight;
  if (here.empty() || AnyExpertLeft(context)) {
    ATELIER_ASSIGN_OR_RETURN(in_flight, Begin(context, layer));
  }
  const bool has_shared = weights.ffn.gate_up != nullptr;
  if (has_shared || !here.empty()) {
    StageTimer timer(stages_.shared, clock_);
    if (has_shared) QueueSharedExpert(context, weights);
    if (!here.empty()) QueueDeviceExperts(context, weights, here);
    if (in_flight == nullptr) {
      context.stream.Add({space.residual->As<float>(), space.block_out->As<float>(), values});
      return absl::OkStatus();
    }
  }
  ATELIER_RETURN_IF_ERROR(in_flight->Wait(space.h_routed->As<float>()));
  stages_.workers.Observe(absl::ToDoubleSeconds(clock_.Now() - sent));
  context.stream.Copy(space.routed->data(), space.h_routed->data(), values * sizeof(float));
  if (has_shared || !here.empty()) {
    context.stream.Add({space.routed->As<float>(), space.block_out->As<float>(), values});
  }
  context.stream.Add({space.residual->As<float>(), space.routed->As<float>(), values});
  return absl::OkStatus();
}

}  // namespace atelier
