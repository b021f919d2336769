#include "services/expert-worker/expert_store.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/progress.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_biases.h"
#include "libs/kernels/pack.h"
#include "libs/numa/node_arena.h"
#include "libs/numa/topology.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_activation.h"
#include "services/expert-worker/expert_packing.h"
#include "services/expert-worker/expert_store_files.h"
#include "services/expert-worker/memory_plan.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {
namespace {

// gate and up [I, H] give rows, down [H, I] gives columns of the slice.
ExpertView PlanExpert(const ShardPlan& plan, const ExpertMethods& methods,
                      const ExpertTensors& tensors, uint8_t* block,
                      std::vector<PackedPiece>& pieces) {
  const ExpertBlock layout = BlockOf(plan, methods);
  uint8_t* const up = block + layout.gate_bytes;
  uint8_t* const down = up + layout.up_bytes;
  const int width = plan.columns.size();
  const int hidden = plan.hidden_size;
  pieces.push_back(GateOrUpPiece(tensors.gate, methods.gate, plan.columns, hidden, block));
  pieces.push_back(GateOrUpPiece(tensors.up, methods.up, plan.columns, hidden, up));
  pieces.push_back(DownPiece(tensors.down, methods.down, plan.columns, hidden, down));
  ExpertView view;
  view.gate = PackedMatrixAt(methods.gate, width, hidden, block);
  view.up = PackedMatrixAt(methods.up, width, hidden, up);
  view.down = PackedMatrixAt(methods.down, hidden, width, down);
  return view;
}

void SetScaleTypes(const ExpertTensors& tensors, ExpertView& view) {
  view.gate.bf16_scales = HasBf16Scales(tensors.gate);
  view.up.bf16_scales = HasBf16Scales(tensors.up);
  view.down.bf16_scales = HasBf16Scales(tensors.down);
}

// The packed experts of one shard: a block of memory per layer, in which experts lie one after the
// other, or two files per layer.
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
  std::vector<int> layer_index;  // of the model -> of the shard, -1 = not held
  // What the views of a layer point into; shared by all stores that have it.
  struct Layer {
    std::unique_ptr<NodeMemory> memory;  // null = from files, or none held
    std::vector<PackedFile> files;       // gate and up, then down
    std::unique_ptr<NodeMemory> biases;  // null = none
    int64_t bytes = 0;
  };
  std::vector<std::shared_ptr<Layer>> layers;  // of the shard
  std::vector<ExpertView> experts;             // [layer of the shard, expert - expert_begin]

  int64_t bytes() const {
    return std::accumulate(
        layers.begin(), layers.end(), int64_t{0},
        [](int64_t sum, const std::shared_ptr<Layer>& layer) { return sum + layer->bytes; });
  }
};

// The same shard of fewer layers.
std::shared_ptr<LoadedShard> Restrict(const LoadedShard& shard, const std::vector<int>& layers) {
  ShardPlan plan = shard.plan;
  plan.spec.layers = layers;
  plan.methods.clear();
  plan.layer_bytes.clear();
  std::vector<size_t> kept;
  for (const int layer : layers) {
    ATELIER_CHECK(shard.Holds(layer));
    kept.push_back(static_cast<size_t>(shard.layer_index[static_cast<size_t>(layer)]));
    plan.methods.push_back(shard.plan.methods[kept.back()]);
    plan.layer_bytes.push_back(shard.plan.layer_bytes[kept.back()]);
  }
  auto restricted = std::make_shared<LoadedShard>(std::move(plan));
  const auto count = static_cast<std::ptrdiff_t>(shard.plan.num_experts());
  for (const size_t index : kept) {
    restricted->layers.push_back(shard.layers[index]);
    const auto first = shard.experts.begin() + static_cast<std::ptrdiff_t>(index) * count;
    restricted->experts.insert(restricted->experts.end(), first, first + count);
  }
  return restricted;
}

struct LoadContext {
  const Checkpoint& checkpoint;
  const ExpertStoreOptions& options;
  NodeArena& arena;
  Clock& clock;
  const Logger& logger;
};

absl::Status CheckMemory(const LoadContext& context, int64_t needed) {
  const int64_t available = context.options.available_bytes
                                ? context.options.available_bytes()
                                : AvailableMemoryBytes(context.arena.numa_node());
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the packed experts need ", needed, " bytes and ", available,
      " are available: hold fewer (--shard-slice, --experts), or pack them smaller (--method)"));
}

int64_t DataBytes(const std::vector<NeededFile>& files) {
  int64_t bytes = 0;
  for (const NeededFile& file : files) bytes += static_cast<int64_t>(file.key.data_bytes());
  return bytes;
}

// Only what the slice has of each panel.
absl::Status PageInMatrix(const PackedMatrix& matrix, NodeArena& arena) {
  if (matrix.data == nullptr) return absl::OkStatus();  // of a skipped expert
  const size_t bytes = PanelBytes(matrix.method, matrix.k);
  const auto panels = static_cast<size_t>(matrix.num_panels());
  if (matrix.row_scales != nullptr) {
    ATELIER_RETURN_IF_ERROR(arena.PageIn(reinterpret_cast<const uint8_t*>(matrix.row_scales),
                                         panels * kPanelWidth * sizeof(float)));
  }
  if (matrix.panel_stride == 0 || matrix.panel_stride == bytes) {
    return arena.PageIn(matrix.data, panels * bytes);
  }
  for (size_t panel = 0; panel < panels; ++panel) {
    ATELIER_RETURN_IF_ERROR(arena.PageIn(matrix.data + panel * matrix.panel_stride, bytes));
  }
  return absl::OkStatus();
}

class PackedExpertStore final : public ExpertStore {
 public:
  PackedExpertStore(const ModelConfig& config, std::vector<ShardPlan> plans,
                    const ExpertSet& skipped)
      : method_(plans[0].methods[0].gate),
        hidden_size_(config.hidden_size),
        num_experts_(config.moe.num_experts) {
    for (ShardPlan& plan : plans) {
      specs_.push_back(plan.spec);
      auto shard = std::make_shared<LoadedShard>(std::move(plan));
      for (size_t i = 0; i < shard->plan.spec.layers.size(); ++i) {
        shard->layers.push_back(std::make_shared<LoadedShard::Layer>());
        shard->layers.back()->bytes =
            HeldLayerBytes(shard->plan, skipped, i) + BiasBytes(shard->plan, config);
      }
      bytes_ += shard->bytes();
      loaded_.push_back(std::move(shard));
    }
  }
  // REQUIRES: parts of PackedExpertStores, at least one.
  explicit PackedExpertStore(const std::vector<Part>& parts)
      : method_(parts[0].store->method()),
        hidden_size_(parts[0].store->hidden_size()),
        num_experts_(parts[0].store->num_experts()) {
    for (const Part& part : parts) {
      const auto& store = static_cast<const PackedExpertStore&>(*part.store);
      std::shared_ptr<LoadedShard> shard = store.loaded_[static_cast<size_t>(part.shard)];
      if (shard->plan.spec.layers != part.layers) shard = Restrict(*shard, part.layers);
      specs_.push_back(shard->plan.spec);
      bytes_ += shard->bytes();
      loaded_.push_back(std::move(shard));
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
  absl::Status Fill(const LoadContext& context);
  // Maps the files of every shard, and makes those that are not there.
  absl::Status Map(const LoadContext& context);

 private:
  const LoadedShard& at(int shard) const { return *loaded_[static_cast<size_t>(shard)]; }
  absl::Status MapShard(const LoadContext& context, LoadedShard& shard) const;
  absl::Status PageIn(NodeArena& arena) const;
  // Memory that is not taken yet, of which `missing` bytes are for files to be made.
  int64_t MemoryToTake(StoreMedium medium, int64_t missing) const {
    return medium == StoreMedium::kDisk ? bytes_ : medium == StoreMedium::kMemory ? missing : 0;
  }

  const Method method_;
  const int hidden_size_;
  const int num_experts_;
  int64_t bytes_ = 0;
  std::vector<ShardSpec> specs_;
  std::vector<std::shared_ptr<LoadedShard>> loaded_;  // not changed once they are loaded
};

// Of the experts that were added last, those of the shard's layer.
absl::Status FinishLayer(const LoadContext& context, size_t index, LoadedShard& shard) {
  const auto count = static_cast<size_t>(shard.plan.num_experts());
  ATELIER_ASSIGN_OR_RETURN(
      shard.layers[index]->biases,
      SetActivations(context.checkpoint, shard.plan.spec.layers[index], shard.plan, context.arena,
                     absl::MakeSpan(shard.experts).last(count)));
  return absl::OkStatus();
}

// The shard's `index`-th layer.
absl::Status FillLayer(const LoadContext& context, size_t index, LoadedShard& shard) {
  const ShardPlan& plan = shard.plan;
  const int layer = plan.spec.layers[index];
  const ExpertMethods& methods = plan.methods[index];
  const ExpertSet& skipped = context.options.skipped;
  std::vector<PackedPiece> pieces;
  uint8_t* block = nullptr;
  if (const int64_t bytes = HeldLayerBytes(plan, skipped, index); bytes > 0) {
    ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<NodeMemory> memory,
                             context.arena.Allocate(static_cast<size_t>(bytes)));
    block = memory->data();
    shard.layers[index]->memory = std::move(memory);
  }
  for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
    if (skipped.Contains(layer, expert)) {
      shard.experts.emplace_back();
      continue;
    }
    ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors,
                             FindExpert(context.checkpoint, layer, expert));
    shard.experts.push_back(PlanExpert(plan, methods, tensors, block, pieces));
    SetScaleTypes(tensors, shard.experts.back());
    block += BlockOf(plan, methods).bytes();
  }
  PackPieces(pieces, context.arena);
  return FinishLayer(context, index, shard);
}

// Before the first is packed: a download that was interrupted may lack the last one.
absl::Status CheckFetched(const LoadContext& context, const ShardPlan& plan) {
  const std::string flags = FetchFlags(plan.spec, context.checkpoint.config().moe.num_experts);
  for (size_t index = 0; index < plan.spec.layers.size(); ++index) {
    const int layer = plan.spec.layers[index];
    for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
      if (context.options.skipped.Contains(layer, expert)) continue;
      ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors,
                               FindExpert(context.checkpoint, layer, expert));
      const int hidden = plan.hidden_size;
      const ExpertMethods& methods = plan.methods[index];
      ATELIER_RETURN_IF_ERROR(
          RequireFetched(context.checkpoint,
                         {GateOrUpPiece(tensors.gate, methods.gate, plan.columns, hidden, nullptr),
                          GateOrUpPiece(tensors.up, methods.up, plan.columns, hidden, nullptr),
                          DownPiece(tensors.down, methods.down, plan.columns, hidden, nullptr)},
                         flags));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedExpertStore::Fill(const LoadContext& context) {
  for (const auto& shard : loaded_) {
    if (context.checkpoint.IsWhole()) break;
    ATELIER_RETURN_IF_ERROR(CheckFetched(context, shard->plan));
  }
  ATELIER_RETURN_IF_ERROR(CheckMemory(context, bytes_));
  Progress progress(context.logger, context.clock, "loading_experts", "bytes", bytes_);
  for (const auto& shard : loaded_) {
    for (size_t index = 0; index < shard->plan.spec.layers.size(); ++index) {
      if (context.options.cancelled && context.options.cancelled()) {
        return absl::CancelledError("loading was cancelled");
      }
      ATELIER_RETURN_IF_ERROR(FillLayer(context, index, *shard));
      progress.Add(shard->layers[index]->bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status PackedExpertStore::Map(const LoadContext& context) {
  absl::StatusOr<ExpertStoreFiles> files =
      ExpertStoreFiles::Open(context.checkpoint, context.options.methods, context.options.store_dir,
                             context.options.store_system, context.logger);
  ATELIER_RETURN_IF_ERROR(files.status());
  std::vector<NeededFile> needs;
  for (const auto& shard : loaded_) {
    const std::vector<NeededFile> more = files->Needs(shard->plan);
    needs.insert(needs.end(), more.begin(), more.end());
  }
  ATELIER_ASSIGN_OR_RETURN(const int64_t missing, files->CheckRoom(needs));
  ATELIER_RETURN_IF_ERROR(CheckMemory(context, MemoryToTake(files->medium(), missing)));
  Progress progress(context.logger, context.clock, "loading_experts", "bytes", DataBytes(needs));
  ATELIER_ASSIGN_OR_RETURN(
      std::vector<PackedFile> found,
      files->FindOrMake(needs, context.arena, progress, context.options.cancelled));
  auto next = found.begin();
  for (const auto& shard : loaded_) {
    for (const std::shared_ptr<LoadedShard::Layer>& layer : shard->layers) {
      layer->files.push_back(std::move(*next++));
      layer->files.push_back(std::move(*next++));
    }
    ATELIER_RETURN_IF_ERROR(MapShard(context, *shard));
  }
  return context.options.populate ? PageIn(context.arena) : absl::OkStatus();
}

absl::Status PackedExpertStore::MapShard(const LoadContext& context, LoadedShard& shard) const {
  const ShardPlan& plan = shard.plan;
  for (size_t index = 0; index < plan.spec.layers.size(); ++index) {
    const int layer = plan.spec.layers[index];
    const std::vector<PackedFile>& files = shard.layers[index]->files;
    for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
      if (context.options.skipped.Contains(layer, expert)) {
        shard.experts.emplace_back();
        continue;
      }
      ATELIER_ASSIGN_OR_RETURN(const ExpertTensors tensors,
                               FindExpert(context.checkpoint, layer, expert));
      shard.experts.push_back(ViewInFiles(plan, plan.methods[index], files[0], files[1], expert));
      SetScaleTypes(tensors, shard.experts.back());
    }
    ATELIER_RETURN_IF_ERROR(FinishLayer(context, index, shard));
  }
  return absl::OkStatus();
}

// Experts are independent, so each is one task; the first failure is reported.
absl::Status PackedExpertStore::PageIn(NodeArena& arena) const {
  for (const auto& shard : loaded_) {
    std::vector<absl::Status> results(shard->experts.size());
    arena.ParallelFor(static_cast<int64_t>(results.size()), [&](int64_t i) {
      const ExpertView& expert = shard->experts[static_cast<size_t>(i)];
      for (const PackedMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
        results[static_cast<size_t>(i)].Update(PageInMatrix(*matrix, arena));
      }
    });
    for (const absl::Status& result : results) ATELIER_RETURN_IF_ERROR(result);
  }
  return absl::OkStatus();
}

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

}  // namespace

absl::StatusOr<std::vector<ShardPlan>> ExpertStore::Plan(const Checkpoint& checkpoint,
                                                         const std::vector<ShardSpec>& shards,
                                                         const LayerMethods& methods) {
  ATELIER_ASSIGN_OR_RETURN(std::vector<ShardPlan> plans,
                           PlanShards(checkpoint.config(), shards, methods));
  ATELIER_RETURN_IF_ERROR(CheckTensors(checkpoint, plans));
  return plans;
}

std::unique_ptr<ExpertStore> ExpertStore::Combine(const std::vector<Part>& parts) {
  ATELIER_CHECK(!parts.empty());
  return std::make_unique<PackedExpertStore>(parts);
}

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Load(const Checkpoint& checkpoint,
                                                               const ExpertStoreOptions& options,
                                                               NodeArena& arena, Clock& clock,
                                                               const Logger& logger) {
  ATELIER_ASSIGN_OR_RETURN(std::vector<ShardPlan> plans,
                           Plan(checkpoint, options.shards, options.methods));
  auto store =
      std::make_unique<PackedExpertStore>(checkpoint.config(), std::move(plans), options.skipped);
  const LoadContext context{checkpoint, options, arena, clock, logger};
  ATELIER_RETURN_IF_ERROR(options.store_dir.empty() ? store->Fill(context) : store->Map(context));
  return store;
}

}  // namespace atelier
