#include "services/gpu-frontend/graph/model_graph.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/device/device.h"
#include "services/gpu-frontend/graph/dense_ffn.h"
#include "services/gpu-frontend/graph/gqa_attention.h"
#include "services/gpu-frontend/graph/kv_cache.h"
#include "services/gpu-frontend/graph/memory_plan.h"
#include "services/gpu-frontend/graph/moe_block.h"
#include "services/gpu-frontend/graph/weights.h"

namespace atelier {
namespace {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, "=", value, ": must lie between ", low, " and ", high));
}

// The longest sequence: as asked for, or what both the model and the cache can hold.
absl::StatusOr<int> ContextLimit(const GraphOptions& options, const ModelConfig& config,
                                 int64_t cache_tokens) {
  if (options.max_context > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat("--context-length=", options.max_context,
                                                   ": exceeds the model's ",
                                                   config.max_position_embeddings, " positions"));
  }
  if (options.max_context > cache_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--context-length=", options.max_context, ": needs ",
        options.max_context * KvBytesPerToken(config), " bytes of KV cache, but ",
        "--kv-cache-bytes=", options.kv_cache_bytes, " holds only ", cache_tokens, " tokens"));
  }
  if (options.max_context > 0) return options.max_context;
  return static_cast<int>(std::min<int64_t>(config.max_position_embeddings, cache_tokens));
}

struct GraphParts {
  ModelConfig config;
  GraphOptions options;
  StepLimits limits;
  int max_context;
  ModelWeights weights;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Workspace> space;
};

class DeviceGraph final : public ModelGraph {
 public:
  DeviceGraph(GraphParts parts, Device& device, RemoteExperts& experts, Clock& clock,
              FrontendMetrics& metrics)
      : parts_(std::move(parts)),
        clock_(clock),
        stages_(metrics),
        stream_(device.CreateStream()),
        moe_(device, experts, clock, stages_) {}

  int vocab_size() const override { return parts_.config.vocab_size; }
  int max_context() const override { return parts_.max_context; }
  int block_size() const override { return parts_.options.block_size; }
  int num_blocks() const override { return parts_.cache->num_blocks(); }
  void SetInterrupt(std::function<bool()> interrupted) override {
    interrupted_ = std::move(interrupted);
  }

  absl::Status Step(absl::Span<const SequenceStep> steps, absl::Span<float> logits) override {
    const StepBatch batch =
        UploadStep(steps, parts_.limits, block_size(), num_blocks(), *parts_.space, *stream_);
    ATELIER_CHECK(logits.size() >=
                  static_cast<size_t>(batch.num_logits) * static_cast<size_t>(vocab_size()));
    const LayerContext context{parts_.config, *stream_, *parts_.space, batch};
    QueueEmbedding(context);
    const absl::Status status = RunLayers(context);
    if (!status.ok()) {
      // Work that is still queued reads buffers that the next step overwrites.
      (void)stream_->Synchronize();
      return status;
    }
    return RunHead(context, logits);
  }

 private:
  void QueueEmbedding(const LayerContext& context) {
    Workspace& space = context.space;
    const AttentionConfig& attention = context.config.attention;
    stream_->Embed({space.tokens->As<int32_t>(), parts_.weights.embedding->As<BFloat16>(),
                    space.residual->As<float>(), context.batch.rows, context.config.hidden_size});
    stream_->RopeTable({space.positions->As<int32_t>(), space.cos_sin->As<float>(),
                        context.batch.rows, attention.rotary_dim, attention.rope_theta});
  }

  absl::Status RunLayers(const LayerContext& context) {
    for (int layer = 0; layer < context.config.num_layers; ++layer) {
      if (interrupted_ && interrupted_()) return absl::CancelledError("nobody waits for this step");
      const LayerWeights& weights = parts_.weights.layers[static_cast<size_t>(layer)];
      {
        StageTimer timer(stages_.attention, clock_);
        QueueGqaAttention(context, weights, parts_.cache->layer(layer));
      }
      if (context.config.is_moe_layer[static_cast<size_t>(layer)]) {
        ATELIER_RETURN_IF_ERROR(moe_.Run(context, layer, weights));
      } else {
        StageTimer timer(stages_.dense, clock_);
        QueueDenseBlock(context, weights);
      }
    }
    return absl::OkStatus();
  }

  // Norm and output matrix for the rows that are wanted, a few at a time: a long prompt's logits
  // would not fit.
  absl::Status RunHead(const LayerContext& context, absl::Span<float> logits) {
    StageTimer timer(stages_.head, clock_);
    Workspace& space = context.space;
    const int hidden = context.config.hidden_size;
    const size_t vocab = static_cast<size_t>(vocab_size());
    for (int first = 0; first < context.batch.num_logits; first += Workspace::kLogitRows) {
      const int rows = std::min(Workspace::kLogitRows, context.batch.num_logits - first);
      stream_->GatherRows({space.residual->As<float>(), space.logit_rows->As<int32_t>() + first,
                           space.last_rows->As<float>(), rows, hidden});
      stream_->RmsNorm({space.last_rows->As<float>(), parts_.weights.final_norm->As<float>(),
                        space.last_rows->As<float>(), rows, hidden,
                        static_cast<float>(context.config.rms_norm_eps)});
      stream_->Linear({space.last_rows->As<float>(), static_cast<size_t>(hidden),
                       parts_.weights.head.get(), nullptr, space.logits->As<float>(), vocab, rows});
      stream_->Copy(logits.data() + static_cast<size_t>(first) * vocab, space.logits->data(),
                    static_cast<size_t>(rows) * vocab * sizeof(float));
    }
    return stream_->Synchronize();
  }

  GraphParts parts_;
  Clock& clock_;
  StageHistograms stages_;
  std::unique_ptr<DeviceStream> stream_;
  MoeBlock moe_;
  std::function<bool()> interrupted_;
};

// What the options come to for a model.
struct GraphSizes {
  int num_blocks = 0;  // of the KV cache
  int max_context = 0;
  StepLimits limits;
};

absl::Status CheckDeviceExperts(const ModelConfig& config, const ExpertSet& experts) {
  if (experts.empty() || (config.moe.activation.IsSwiGlu() && !config.moe.expert_bias)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "--device-experts: the experts of model_type ", config.model_type,
      config.moe.expert_bias ? " have biases" : " are not SwiGLU", ", which only workers compute"));
}

absl::StatusOr<GraphSizes> SizesOf(const ModelConfig& config, const Device& device,
                                   const GraphOptions& options) {
  ATELIER_RETURN_IF_ERROR(options.Validate());
  ATELIER_RETURN_IF_ERROR(CheckDeviceExperts(config, options.device_experts));
  GraphSizes sizes;
  ATELIER_ASSIGN_OR_RETURN(
      sizes.num_blocks, KvCache::CountBlocks(config, options.kv_cache_bytes, options.block_size));
  const int64_t cache_tokens = int64_t{sizes.num_blocks} * options.block_size;
  ATELIER_ASSIGN_OR_RETURN(sizes.max_context, ContextLimit(options, config, cache_tokens));
  sizes.limits = {options.max_tokens_per_step, options.max_sequences,
                  CeilDiv(sizes.max_context, options.block_size), config.vocab_size,
                  options.device_experts.empty() ? 0 : config.moe.intermediate_size};
  const MemoryPlan plan{WeightBytes(config) + DeviceExpertBytes(config, options.device_experts),
                        cache_tokens * KvBytesPerToken(config),
                        Workspace::Bytes(config, sizes.limits)};
  ATELIER_RETURN_IF_ERROR(plan.CheckFits(device.FreeBytes()));
  return sizes;
}

}  // namespace

absl::Status GraphOptions::Validate() const {
  ATELIER_RETURN_IF_ERROR(CheckRange("--kv-cache-bytes", kv_cache_bytes, 1, int64_t{1} << 50));
  ATELIER_RETURN_IF_ERROR(CheckRange("--page-size", block_size, 1, 256));
  ATELIER_RETURN_IF_ERROR(CheckRange("--context-length", max_context, 0, int64_t{1} << 30));
  ATELIER_RETURN_IF_ERROR(
      CheckRange("max_tokens_per_step", max_tokens_per_step, 1, int64_t{1} << 20));
  return CheckRange("max_sequences", max_sequences, 1, int64_t{1} << 16);
}

absl::Status ModelGraph::CheckFits(const ModelConfig& config, const Device& device,
                                   const GraphOptions& options) {
  return SizesOf(config, device, options).status();
}

absl::StatusOr<std::unique_ptr<ModelGraph>> ModelGraph::Create(
    const Checkpoint& checkpoint, Device& device, RemoteExperts& experts,
    const GraphOptions& options, Clock& clock, const Logger& logger, FrontendMetrics& metrics) {
  ATELIER_RETURN_IF_ERROR(VerifyTensors(checkpoint, Role::kFrontend));
  const ModelConfig& config = checkpoint.config();
  ATELIER_ASSIGN_OR_RETURN(const GraphSizes sizes, SizesOf(config, device, options));
  const int num_blocks = sizes.num_blocks;
  GraphParts parts{config, options, sizes.limits, sizes.max_context, {}, nullptr, nullptr};
  ATELIER_ASSIGN_OR_RETURN(parts.cache,
                           KvCache::Create(device, config, num_blocks, options.block_size));
  ATELIER_ASSIGN_OR_RETURN(parts.space, Workspace::Create(device, config, parts.limits));
  ATELIER_ASSIGN_OR_RETURN(
      parts.weights, LoadModelWeights(checkpoint, options.device_experts, device, clock, logger));
  logger.Info("kv_cache",
              {Kv("blocks", parts.cache->num_blocks()), Kv("block_size", options.block_size),
               Kv("tokens", int64_t{num_blocks} * options.block_size),
               Kv("max_context", parts.max_context)});
  return std::make_unique<DeviceGraph>(std::move(parts), device, experts, clock, metrics);
}

}  // namespace atelier
