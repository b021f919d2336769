#include "services/expert-worker/expert_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/progress.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/pack.h"
#include "libs/numa/node_arena.h"
#include "libs/numa/topology.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_activation.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {
namespace {

// Panels that one task packs: enough work to be worth a task, few enough to balance one large
// matrix over many threads.
constexpr int kPanelsPerTask = 16;

// The part of a published matrix that begins at (row, column), packed as [n, k].
struct PackTask {
  ExpertMatrix matrix;
  Method method = Method::kBF16;
  int row = 0;
  int column = 0;
  int n = 0;
  int k = 0;
  int panel_begin = 0;
  int panel_end = 0;
  uint8_t* block = nullptr;
};

void Run(const PackTask& task) {
  if (task.matrix.quant) {
    const QuantSlice codes(*task.matrix.quant->source, task.row, task.column);
    PackQuantMatrix(codes, task.method, task.n, task.k, task.panel_begin, task.panel_end,
                    task.block);
    return;
  }
  const TensorView& tensor = task.matrix.tensor;
  const size_t row_stride = static_cast<size_t>(tensor.shape[1]);
  const size_t first =
      static_cast<size_t>(task.row) * row_stride + static_cast<size_t>(task.column);
  const WeightSource floats{tensor.dtype, tensor.data.data() + first * DTypeBytes(tensor.dtype),
                            row_stride};
  PackMatrix(floats, task.method, task.n, task.k, task.panel_begin, task.panel_end, task.block);
}

bool HasBf16Scales(const ExpertMatrix& matrix) { return matrix.quant && matrix.quant->bf16_scales; }

void AddTasks(const PackTask& whole, std::vector<PackTask>& tasks) {
  const int num_panels = (whole.n + kPanelWidth - 1) / kPanelWidth;
  for (int panel = 0; panel < num_panels; panel += kPanelsPerTask) {
    PackTask task = whole;
    task.panel_begin = panel;
    task.panel_end = std::min(panel + kPanelsPerTask, num_panels);
    tasks.push_back(task);
  }
}

// gate and up [I, H] give rows, down [H, I] gives columns of the slice.
ExpertView PlanExpert(const ShardPlan& plan, const ExpertMethods& methods,
                      const ExpertTensors& tensors, uint8_t* block, std::vector<PackTask>& tasks) {
  const ExpertBlock layout = BlockOf(plan, methods);
  uint8_t* const up = block + layout.gate_bytes;
  uint8_t* const down = up + layout.up_bytes;
  const int begin = plan.columns.begin;
  const int width = plan.columns.size();
  const int hidden = plan.hidden_size;
  AddTasks({tensors.gate, methods.gate, begin, 0, width, hidden, 0, 0, block}, tasks);
  AddTasks({tensors.up, methods.up, begin, 0, width, hidden, 0, 0, up}, tasks);
  AddTasks({tensors.down, methods.down, 0, begin, hidden, width, 0, 0, down}, tasks);
  ExpertView view;
  view.gate = PackedMatrixAt(methods.gate, width, hidden, block);
  view.up = PackedMatrixAt(methods.up, width, hidden, up);
  view.down = PackedMatrixAt(methods.down, hidden, width, down);
  view.gate.bf16_scales = HasBf16Scales(tensors.gate);
  view.up.bf16_scales = HasBf16Scales(tensors.up);
  view.down.bf16_scales = HasBf16Scales(tensors.down);
  return view;
}

// The packed experts of one shard: a block of memory per layer, in which experts lie one after the
// other.
struct LoadedShard {
  explicit LoadedShard(ShardPlan shard_plan)
      : plan(std::move(shard_plan)),
        layer_index(static_cast<size_t>(plan.spec.layers.back()) + 1, -1) {
    for (size_t i = 0; i < plan.spec.layers.size(); ++i) {
      layer_index[static_cast<size_t>(plan.spec.layers[i])] = static_cast<int>(i);
    }
  }

  bool Holds(int layer) const {
    return layer >= 0 && static_cast<size_t>(layer) < layer_index.size() &&
           layer_index[static_cast<size_t>(layer)] >= 0;
  }

  ShardPlan plan;
  std::vector<int> layer_index;                     // of the model -> of the shard, -1 = not held
  std::vector<std::unique_ptr<NodeMemory>> memory;  // per layer of the shard
  std::vector<std::unique_ptr<NodeMemory>> biases;  // likewise; null = none
  std::vector<ExpertView> experts;                  // [layer of the shard, expert - expert_begin]
};

class PackedExpertStore final : public ExpertStore {
 public:
  PackedExpertStore(const ModelConfig& config, std::vector<ShardPlan> plans)
      : method_(plans[0].methods[0].gate),
        hidden_size_(config.hidden_size),
        num_experts_(config.moe.num_experts) {
    for (ShardPlan& plan : plans) {
      specs_.push_back(plan.spec);
      bytes_ += plan.bytes() + BiasBytes(plan, config) * plan.num_layers();
      loaded_.emplace_back(std::move(plan));
    }
  }

  const std::vector<ShardSpec>& shards() const override { return specs_; }
  Method method() const override { return method_; }
  int hidden_size() const override { return hidden_size_; }
  int num_experts() const override { return num_experts_; }
  bool HoldsLayer(int shard, int layer) const override { return at(shard).Holds(layer); }
  const ExpertView& expert(int shard, int layer, int expert) const override {
    const LoadedShard& loaded = at(shard);
    ATELIER_DCHECK(loaded.Holds(layer));
    ATELIER_DCHECK(expert >= loaded.plan.spec.expert_begin && expert < loaded.plan.spec.expert_end);
    const int row = loaded.layer_index[static_cast<size_t>(layer)] * loaded.plan.num_experts();
    return loaded.experts[static_cast<size_t>(row + expert - loaded.plan.spec.expert_begin)];
  }
  int64_t bytes() const override { return bytes_; }

  // Packs every layer of every shard in turn.
  absl::Status Fill(const Checkpoint& checkpoint, const ExpertStoreOptions& options,
                    NodeArena& arena, Progress& progress);

 private:
  const LoadedShard& at(int shard) const { return loaded_[static_cast<size_t>(shard)]; }
  // The shard's `index`-th layer.
  absl::Status FillLayer(const Checkpoint& checkpoint, size_t index, NodeArena& arena,
                         LoadedShard& shard) const;

  const Method method_;
  const int hidden_size_;
  const int num_experts_;
  int64_t bytes_ = 0;
  std::vector<ShardSpec> specs_;
  std::vector<LoadedShard> loaded_;
};

absl::Status PackedExpertStore::Fill(const Checkpoint& checkpoint,
                                     const ExpertStoreOptions& options, NodeArena& arena,
                                     Progress& progress) {
  for (LoadedShard& shard : loaded_) {
    for (size_t index = 0; index < shard.plan.spec.layers.size(); ++index) {
      if (options.cancelled && options.cancelled()) {
        return absl::CancelledError("loading was cancelled");
      }
      ATELIER_RETURN_IF_ERROR(FillLayer(checkpoint, index, arena, shard));
      progress.Add(shard.plan.layer_bytes[index] + BiasBytes(shard.plan, checkpoint.config()));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedExpertStore::FillLayer(const Checkpoint& checkpoint, size_t index,
                                          NodeArena& arena, LoadedShard& shard) const {
  const ShardPlan& plan = shard.plan;
  const int layer = plan.spec.layers[index];
  const ExpertMethods& methods = plan.methods[index];
  ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<NodeMemory> memory,
                           arena.Allocate(static_cast<size_t>(plan.layer_bytes[index])));
  std::vector<PackTask> tasks;
  uint8_t* block = memory->data();
  for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
    ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors, FindExpert(checkpoint, layer, expert));
    shard.experts.push_back(PlanExpert(plan, methods, tensors, block, tasks));
    block += BlockOf(plan, methods).bytes();
  }
  arena.ParallelFor(static_cast<int64_t>(tasks.size()),
                    [&](int64_t i) { Run(tasks[static_cast<size_t>(i)]); });
  shard.memory.push_back(std::move(memory));
  const auto count = static_cast<size_t>(plan.num_experts());
  ATELIER_ASSIGN_OR_RETURN(
      shard.biases.emplace_back(),
      SetActivations(checkpoint, layer, plan, arena, absl::MakeSpan(shard.experts).last(count)));
  return absl::OkStatus();
}

// Every tensor that will be packed, so that a broken checkpoint costs no memory and no minutes.
absl::Status CheckTensors(const Checkpoint& checkpoint, const std::vector<ShardPlan>& plans) {
  for (const ShardPlan& plan : plans) {
    for (const int layer : plan.spec.layers) {
      ATELIER_ASSIGN_OR_RETURN(const ExpertTensors first, FindExpert(checkpoint, layer, 0));
      for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
        ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors,
                                 FindExpert(checkpoint, layer, expert));
        ATELIER_RETURN_IF_ERROR(CheckPublishedAlike(first, tensors));
        ATELIER_RETURN_IF_ERROR(FindExpertBiases(checkpoint, layer, expert).status());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(int64_t needed, int64_t available) {
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the packed experts need ", needed, " bytes and ", available,
      " are available: hold fewer (--shard-slice, --experts), or pack them smaller (--method)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Load(const Checkpoint& checkpoint,
                                                               const ExpertStoreOptions& options,
                                                               NodeArena& arena, Clock& clock,
                                                               const Logger& logger) {
  ATELIER_ASSIGN_OR_RETURN(std::vector<ShardPlan> plans,
                           PlanShards(checkpoint.config(), options.shards, options.methods));
  ATELIER_RETURN_IF_ERROR(CheckTensors(checkpoint, plans));
  auto store = std::make_unique<PackedExpertStore>(checkpoint.config(), std::move(plans));
  const int64_t available =
      options.available_bytes ? options.available_bytes() : AvailableMemoryBytes(arena.numa_node());
  ATELIER_RETURN_IF_ERROR(CheckMemory(store->bytes(), available));
  Progress progress(logger, clock, "loading_experts", "bytes", store->bytes());
  ATELIER_RETURN_IF_ERROR(store->Fill(checkpoint, options, arena, progress));
  return store;
}

}  // namespace atelier
