#include "tools/atelier/inspection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/kernel_table.h"
#include "services/expert-worker/choose_method.h"
#include "services/gpu-frontend/graph/memory_plan.h"

namespace atelier {
namespace {

constexpr absl::string_view kRoutedExperts = "routed experts";

struct ClassRule {
  absl::string_view name;
  absl::string_view mark;  // a part of the tensors' names
};
// The first that matches.
constexpr ClassRule kClassRules[] = {
    {kRoutedExperts, "mlp.experts."},  {"shared experts", "mlp.shared_expert"},
    {"attention", "self_attn."},       {"router", "mlp.gate."},
    {"dense layers", "mlp."},          {"embedding, output", "embed_tokens."},
    {"embedding, output", "lm_head."}, {"norms", "norm."},
};

absl::string_view ClassOf(absl::string_view tensor) {
  for (const ClassRule& rule : kClassRules) {
    if (absl::StrContains(tensor, rule.mark)) return rule.name;
  }
  return "other";
}

TensorClass& Class(std::vector<TensorClass>& classes, absl::string_view name) {
  const auto found = std::find_if(classes.begin(), classes.end(),
                                  [name](const TensorClass& c) { return c.name == name; });
  if (found != classes.end()) return *found;
  classes.push_back({std::string(name), 0, 0, {}});
  return classes.back();
}

absl::Status CountTensors(const Checkpoint& checkpoint, Inspection& inspection) {
  const ModelConfig& config = checkpoint.config();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    inspection.layers.push_back({config.is_moe_layer[static_cast<size_t>(layer)], 0, 0});
  }
  for (const std::string& name : checkpoint.TensorNames()) {
    ATELIER_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Find(name));
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    const absl::string_view class_name = ClassOf(name);
    TensorClass& tensor_class = Class(inspection.classes, class_name);
    ++tensor_class.tensors;
    tensor_class.bytes += bytes;
    tensor_class.bytes_of[std::string(tensor.TypeName())] += bytes;
    const bool is_expert = class_name == kRoutedExperts;
    (is_expert ? inspection.worker : inspection.frontend).bytes += bytes;
    const int layer = LayerOf(name);
    if (layer < 0 || layer >= config.num_layers) continue;
    LayerSize& size = inspection.layers[static_cast<size_t>(layer)];
    (is_expert ? size.expert_bytes : size.frontend_bytes) += bytes;
  }
  std::sort(inspection.classes.begin(), inspection.classes.end(),
            [](const TensorClass& a, const TensorClass& b) { return a.bytes > b.bytes; });
  return absl::OkStatus();
}

int64_t Elements(const std::vector<PromisedTensor>& tensors) {
  int64_t elements = 0;
  for (const PromisedTensor& tensor : tensors) {
    int64_t product = 1;
    for (const int64_t dim : tensor.shape) product *= dim;
    elements += product;
  }
  return elements;
}

// Of a model whose other tensors nobody here knows: as the file has them, without scales.
int64_t ElementsBesideExperts(const Checkpoint& checkpoint) {
  int64_t elements = 0;
  for (const std::string& name : checkpoint.TensorNames()) {
    if (ClassOf(name) == kRoutedExperts || absl::StrContains(name, "_scale")) continue;
    const absl::StatusOr<TensorView> tensor = checkpoint.Find(name);
    if (tensor.ok()) elements += Elements({{name, tensor->shape}});
  }
  return elements;
}

void CountParameters(const Checkpoint& checkpoint, Inspection& inspection) {
  const ModelConfig& config = inspection.config;
  inspection.parameters = inspection.active_parameters = config.beyond_frontend.empty()
                                                             ? Elements(FrontendTensors(config))
                                                             : ElementsBesideExperts(checkpoint);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    const int64_t expert = Elements(ExpertTensorsAlone(config, layer, 0));
    inspection.parameters += expert * config.moe.num_experts;
    inspection.active_parameters += expert * config.moe.top_k;
  }
}

absl::Status NameKernels(const LayerMethods& methods, Inspection& inspection) {
  ATELIER_ASSIGN_OR_RETURN(const KernelTable table,
                           KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto));
  for (const Method method : UsedMethods(inspection.config, methods)) {
    inspection.kernels.emplace_back(MethodName(method), table.isa(method));
  }
  return absl::OkStatus();
}

// The first experts of each layer, which stand for any: all of a layer are alike.
absl::StatusOr<ExpertSet> FirstExperts(int count, const ModelConfig& config) {
  if (count > config.moe.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("--gpu-experts=", count, ": the model has ",
                                                   config.moe.num_experts, " a layer"));
  }
  std::string text;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe_layer[static_cast<size_t>(layer)]) continue;
    absl::StrAppend(&text, layer, ": 0-", count - 1, "\n");
  }
  return ExpertSet::Parse(text, config);
}

absl::StatusOr<std::vector<ShardPlan>> PlanSlice(int index, int count, const LayerMethods& methods,
                                                 const ModelConfig& config) {
  const ShardSpec shard{{}, 0, config.moe.num_experts, index, count};
  absl::StatusOr<std::vector<ShardPlan>> plans = PlanShards(config, {shard}, methods);
  if (plans.ok()) return plans;
  return NameFlags(plans.status(), {{"slice ", "--workers: slice "}});
}

absl::Status PlanWorkers(const Checkpoint& checkpoint, const InspectOptions& options,
                         const LayerMethods& methods, Inspection& inspection) {
  inspection.max_batch_tokens = options.max_batch_tokens;
  for (int slice = 0; slice < options.workers; ++slice) {
    ATELIER_ASSIGN_OR_RETURN(const std::vector<ShardPlan> plans,
                             PlanSlice(slice, options.workers, methods, inspection.config));
    inspection.workers.push_back(
        PlanWorkerMemory(checkpoint, plans, options.skipped, options.max_batch_tokens));
  }
  return absl::OkStatus();
}

// Experts that move from the workers to the frontend's device.
absl::Status MoveExperts(InspectOptions& options, Inspection& inspection) {
  const ModelConfig& config = inspection.config;
  if (options.gpu_experts > 0) {
    ATELIER_ASSIGN_OR_RETURN(options.skipped, FirstExperts(options.gpu_experts, config));
  }
  inspection.frontend_memory.gpu_experts = DeviceExpertBytes(config, options.skipped);
  if (options.skipped.empty()) return absl::OkStatus();
  inspection.notes.push_back(
      "the plan assumes frontends that compute the experts that workers skip: give both the same "
      "file, gpu-frontend --device-experts=FILE and expert-worker --skip-experts=FILE");
  return absl::OkStatus();
}

absl::Status InspectExperts(const Checkpoint& checkpoint, InspectOptions options,
                            Inspection& inspection) {
  inspection.worker.supported = VerifyTensors(checkpoint, Role::kWorker);
  if (!inspection.worker.supported.ok()) return absl::OkStatus();
  const absl::StatusOr<LayerMethods> methods = ChooseMethods(checkpoint, options.method);
  ATELIER_RETURN_IF_ERROR(NameFlags(methods.status(), {{"method=", "--method="}}));
  inspection.methods = MethodNames(inspection.config, *methods);
  ATELIER_RETURN_IF_ERROR(NameKernels(*methods, inspection));
  ATELIER_RETURN_IF_ERROR(MoveExperts(options, inspection));
  return PlanWorkers(checkpoint, options, *methods, inspection);
}

absl::Status CountWidened(const Checkpoint& checkpoint, Inspection& inspection) {
  for (const PromisedTensor& promised : FrontendTensors(inspection.config)) {
    if (promised.shape.size() != 2) continue;
    ATELIER_ASSIGN_OR_RETURN(
        const PublishedMatrix matrix,
        FindMatrix(checkpoint, promised.name, static_cast<int>(promised.shape[0]),
                   static_cast<int>(promised.shape[1])));
    if (matrix.quant) ++inspection.widened[std::string(MethodName(matrix.quant->method))];
  }
  return absl::OkStatus();
}

}  // namespace

RoleNeeds NeedsOf(std::string role, const Checkpoint& checkpoint, const FileBytes& bytes) {
  RoleNeeds needs{std::move(role), {}};
  for (const CheckpointFile& file : checkpoint.Files()) {
    const auto found = bytes.find(file.name);
    if (found == bytes.end()) continue;
    needs.files.push_back({file.name, file.bytes.size(), found->second});
  }
  return needs;
}

absl::StatusOr<Inspection> Inspect(const Checkpoint& checkpoint, const InspectOptions& options) {
  Inspection inspection;
  inspection.path = checkpoint.directory();
  inspection.digest = checkpoint.digest();
  inspection.config = checkpoint.config();
  CountParameters(checkpoint, inspection);
  ATELIER_RETURN_IF_ERROR(CountTensors(checkpoint, inspection));
  inspection.frontend.supported = VerifyTensors(checkpoint, Role::kFrontend);
  if (inspection.frontend.supported.ok()) {
    ATELIER_RETURN_IF_ERROR(CountWidened(checkpoint, inspection));
  }
  inspection.frontend.supported.Update(inspection.config.CheckHasExperts());
  ATELIER_RETURN_IF_ERROR(InspectExperts(checkpoint, options, inspection));
  if (!inspection.config.beyond_frontend.empty()) return inspection;  // no frontend to plan
  ATELIER_ASSIGN_OR_RETURN(inspection.frontend_memory,
                           PlanFrontendMemory(checkpoint, options.frontend_memory,
                                              inspection.frontend_memory.gpu_experts));
  return inspection;
}

}  // namespace atelier
