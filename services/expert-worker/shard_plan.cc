#include "services/expert-worker/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/kernels/pack.h"

namespace atelier {
namespace {

std::vector<int> MoeLayers(const ModelConfig& config) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_moe_layer[static_cast<size_t>(layer)]) layers.push_back(layer);
  }
  return layers;
}

absl::Status CheckLayers(const ModelConfig& config, const std::vector<int>& layers) {
  const std::vector<int> moe_layers = MoeLayers(config);
  if (moe_layers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model (model_type ", config.model_type, ") has no layer with experts"));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!std::binary_search(moe_layers.begin(), moe_layers.end(), layers[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layers[i], " has no experts; layers with experts are within ",
                       moe_layers.front(), "-", moe_layers.back()));
    }
    if (i > 0 && layers[i] <= layers[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layers[i], " of a shard does not ascend"));
    }
  }
  return absl::OkStatus();
}

// Whether every slice of the model's experts keeps whole groups of the method.
bool CanSlice(const MoeConfig& moe, Method method, int slice_count) {
  const int begins = KSliceMultiple(method), holds = KMultiple(method);
  for (int i = 0; i < slice_count; ++i) {
    const absl::StatusOr<IntermediateRange> range =
        SliceRange(moe.intermediate_size, i, slice_count);
    if (!range.ok() || range->begin % begins != 0 || range->size() % holds != 0) return false;
  }
  return true;
}

// All slices must be possible, not only this one: the others' frontends need them.
absl::Status CheckSlice(const MoeConfig& moe, Method method, const ShardSpec& shard) {
  if (CanSlice(moe, method, shard.slice_count)) return absl::OkStatus();
  std::vector<int> possible;
  for (int count = 1; count <= moe.intermediate_size / kSliceGranule; ++count) {
    if (CanSlice(moe, method, count)) possible.push_back(count);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "slice ", shard.slice_index, "/", shard.slice_count, ": an intermediate size of ",
      moe.intermediate_size, " in ", shard.slice_count, " slices would cut groups of ",
      KSliceMultiple(method), " inputs that ", MethodName(method), " keeps together; ",
      possible.empty()
          ? std::string("no number of slices is possible: choose another --method")
          : absl::StrCat("possible numbers of slices: ", absl::StrJoin(possible, ", "))));
}

// A slice cuts the rows of gate and up, and the inputs of down.
absl::Status CheckMatrices(const ShardPlan& plan, const MoeConfig& moe,
                           const ExpertMethods& methods) {
  ATELIER_RETURN_IF_ERROR(CheckSlice(moe, methods.down, plan.spec));
  const int width = plan.columns.size(), hidden = plan.hidden_size;
  ATELIER_RETURN_IF_ERROR(ValidatePackedShape(methods.gate, width, hidden));
  ATELIER_RETURN_IF_ERROR(ValidatePackedShape(methods.up, width, hidden));
  return ValidatePackedShape(methods.down, hidden, width);
}

absl::Status AddLayer(const ExpertMethods& methods, const MoeConfig& moe, ShardPlan& plan) {
  ATELIER_RETURN_IF_ERROR(CheckMatrices(plan, moe, methods));
  const std::optional<int64_t> bytes =
      CheckedMul<int64_t>(static_cast<int64_t>(BlockOf(plan, methods).bytes()), plan.num_experts());
  if (!bytes || !CheckedAdd(plan.bytes(), *bytes)) {
    return absl::InvalidArgumentError("the shard has more bytes than 64 bits can count");
  }
  plan.methods.push_back(methods);
  plan.layer_bytes.push_back(*bytes);
  return absl::OkStatus();
}

absl::StatusOr<ShardPlan> PlanShard(const ModelConfig& config, const ShardSpec& shard,
                                    const LayerMethods& methods) {
  ATELIER_RETURN_IF_ERROR(CheckLayers(config, shard.layers));
  const MoeConfig& moe = config.moe;
  if (shard.expert_begin < 0 || shard.expert_end <= shard.expert_begin ||
      shard.expert_end > moe.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("experts ", shard.expert_begin, "-", shard.expert_end - 1,
                     ": the model has experts 0-", moe.num_experts - 1));
  }
  ShardPlan plan;
  plan.spec = shard;
  if (shard.layers.empty()) plan.spec.layers = MoeLayers(config);
  plan.hidden_size = config.hidden_size;
  plan.intermediate_size = moe.intermediate_size;
  ATELIER_ASSIGN_OR_RETURN(plan.columns,
                           SliceRange(moe.intermediate_size, shard.slice_index, shard.slice_count));
  for (const int layer : plan.spec.layers) {
    ATELIER_RETURN_IF_ERROR(AddLayer(methods[static_cast<size_t>(layer)], moe, plan));
  }
  return plan;
}

bool Overlap(const ShardPlan& a, const ShardPlan& b) {
  const bool experts =
      a.spec.expert_begin < b.spec.expert_end && b.spec.expert_begin < a.spec.expert_end;
  const bool columns = a.columns.begin < b.columns.end && b.columns.begin < a.columns.end;
  return experts && columns &&
         std::find_first_of(a.spec.layers.begin(), a.spec.layers.end(), b.spec.layers.begin(),
                            b.spec.layers.end()) != a.spec.layers.end();
}

}  // namespace

LayerMethods UniformMethods(const ModelConfig& config, Method method) {
  return LayerMethods(static_cast<size_t>(config.num_layers), {method, method, method});
}

std::set<Method> UsedMethods(const ModelConfig& config, const LayerMethods& methods) {
  std::set<Method> used;
  for (const int layer : MoeLayers(config)) {
    const ExpertMethods& of_layer = methods[static_cast<size_t>(layer)];
    used.insert({of_layer.gate, of_layer.up, of_layer.down});
  }
  return used;
}

ActivationForm CommonInt8Form(const ModelConfig& config, const LayerMethods& methods) {
  std::set<ActivationForm> forms;
  for (const int layer : MoeLayers(config)) {
    const ExpertMethods& used = methods[static_cast<size_t>(layer)];
    forms.insert(ActivationFormOf(used.gate));
    forms.insert(ActivationFormOf(used.up));
  }
  return forms.size() == 1 ? *forms.begin() : ActivationForm::kBf16;
}

std::string MethodNames(const ModelConfig& config, const LayerMethods& methods) {
  const auto name_of = [](std::string* out, Method method) {
    out->append(std::string(MethodName(method)));
  };
  return absl::StrJoin(UsedMethods(config, methods), "+", name_of);
}

int64_t ShardPlan::bytes() const {
  return std::accumulate(layer_bytes.begin(), layer_bytes.end(), int64_t{0});
}

size_t BlockBytes(Method method, int n, int k) {
  return RoundUp(PackedMatrixBytes(method, n, k), size_t{kRowAlignBytes});
}

ExpertBlock BlockOf(const ShardPlan& plan, const ExpertMethods& methods) {
  const int width = plan.columns.size(), hidden = plan.hidden_size;
  return {BlockBytes(methods.gate, width, hidden), BlockBytes(methods.up, width, hidden),
          BlockBytes(methods.down, hidden, width)};
}

absl::StatusOr<std::vector<ShardPlan>> PlanShards(const ModelConfig& config,
                                                  const std::vector<ShardSpec>& shards,
                                                  const LayerMethods& methods) {
  ATELIER_CHECK(methods.size() == static_cast<size_t>(config.num_layers));
  if (shards.empty()) return absl::InvalidArgumentError("shards: there is none to load");
  std::vector<ShardPlan> plans;
  for (const ShardSpec& shard : shards) {
    ATELIER_ASSIGN_OR_RETURN(ShardPlan plan, PlanShard(config, shard, methods));
    for (const ShardPlan& other : plans) {
      if (Overlap(plan, other)) {
        return absl::InvalidArgumentError(absl::StrCat("shards \"", ShardName(other.spec),
                                                       "\" and \"", ShardName(plan.spec),
                                                       "\" hold the same weights twice"));
      }
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace atelier
