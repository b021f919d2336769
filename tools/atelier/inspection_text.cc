#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "libs/base/flag_table.h"
#include "tools/atelier/inspection.h"

namespace atelier {
namespace {

// "134.52 M": parameters for people.
std::string Millions(int64_t count) {
  const double value = static_cast<double>(count);
  return count < 1'000'000'000 ? absl::StrFormat("%.2f M", value / 1e6)
                               : absl::StrFormat("%.2f B", value / 1e9);
}

void AppendLine(std::string& text, absl::string_view topic, absl::string_view fact) {
  absl::StrAppendFormat(&text, "%-12s%s\n", topic, fact);
}

std::string ModelFact(const ModelConfig& config) {
  return absl::StrCat(config.model_type, ", ", config.num_layers, " layers (",
                      config.num_moe_layers(), " with experts), hidden ", config.hidden_size,
                      ", vocabulary ", config.vocab_size, ", context ",
                      config.max_position_embeddings);
}

std::string ExpertsFact(const MoeConfig& moe) {
  return absl::StrCat(
      moe.num_experts, " a layer, ", moe.top_k, " a token, width ", moe.intermediate_size,
      moe.shared_intermediate_size == 0
          ? ""
          : absl::StrCat(", and a shared one of width ", moe.shared_intermediate_size));
}

void AppendClasses(std::string& text, const std::vector<TensorClass>& classes) {
  for (const TensorClass& tensor_class : classes) {
    std::vector<std::string> formats;
    for (const auto& [dtype, bytes] : tensor_class.bytes_of) {
      formats.push_back(absl::StrCat(dtype, " ", FormatBytes(bytes)));
    }
    absl::StrAppendFormat(&text, "  %-19s %8d tensors  %s\n", tensor_class.name,
                          tensor_class.tensors, absl::StrJoin(formats, ", "));
  }
}

// "1.2 MiB", or "1.2 MiB to 3 MiB" where layers differ.
std::string Spread(const std::vector<LayerSize>& layers, bool is_moe, int64_t LayerSize::*member) {
  int64_t least = -1, most = -1;
  for (const LayerSize& layer : layers) {
    if (layer.is_moe != is_moe) continue;
    const int64_t bytes = layer.*member;
    least = least < 0 ? bytes : std::min(least, bytes);
    most = std::max(most, bytes);
  }
  if (most <= least) return FormatBytes(most);
  return absl::StrCat(FormatBytes(least), " to ", FormatBytes(most));
}

void AppendLayers(std::string& text, const std::vector<LayerSize>& layers) {
  const auto has = [&](bool is_moe) {
    return std::any_of(layers.begin(), layers.end(),
                       [is_moe](const LayerSize& layer) { return layer.is_moe == is_moe; });
  };
  if (has(false)) {
    AppendLine(text, "each layer",
               absl::StrCat("dense: ", Spread(layers, false, &LayerSize::frontend_bytes)));
  }
  if (has(true)) {
    AppendLine(text, "each layer",
               absl::StrCat("with experts: ", Spread(layers, true, &LayerSize::expert_bytes),
                            " of experts, ", Spread(layers, true, &LayerSize::frontend_bytes),
                            " of the rest"));
  }
}

std::string RoleFact(const RoleReport& report) {
  if (!report.supported.ok()) {
    return absl::StrCat("cannot serve this: ", report.supported.message());
  }
  return absl::StrCat("reads ", FormatBytes(report.bytes), " of the files");
}

void AppendWorkers(std::string& text, const Inspection& inspection) {
  AppendLine(text, "workers", RoleFact(inspection.worker));
  if (!inspection.worker.supported.ok()) return;
  for (const auto& [method, isa] : inspection.kernels) {
    absl::StrAppendFormat(&text, "  %-19s computed by %s on this machine\n", method, isa);
  }
  int64_t total = 0;
  for (size_t slice = 0; slice < inspection.workers.size(); ++slice) {
    const WorkerMemoryPlan& worker = inspection.workers[slice];
    absl::StrAppendFormat(
        &text,
        "  %-19s %s: %s of weights in memory, %s of program; a batch of %d rows takes up to "
        "%s more\n",
        absl::StrCat("slice ", slice, "/", inspection.workers.size()),
        FormatBytes(worker.Resident()), FormatBytes(worker.weights), FormatBytes(worker.process),
        inspection.max_batch_tokens, FormatBytes(worker.batch));
    total += worker.Resident();
  }
  if (inspection.workers.size() == 1) return;
  absl::StrAppendFormat(&text, "  %-19s %s\n", "all slices", FormatBytes(total));
}

void AppendFrontend(std::string& text, const Inspection& inspection) {
  const FrontendMemory& memory = inspection.frontend_memory;
  AppendLine(text, "frontend", RoleFact(inspection.frontend));
  if (!inspection.config.beyond_frontend.empty()) return;
  absl::StrAppendFormat(
      &text, "  %-19s %s: %s of weights in memory, %s of program%s\n", "memory",
      FormatBytes(memory.Resident()), FormatBytes(memory.weights), FormatBytes(memory.process),
      memory.gpu_experts == 0 ? ""
                              : absl::StrCat(", ", FormatBytes(memory.gpu_experts), " of experts"));
  for (const auto& [method, count] : inspection.widened) {
    absl::StrAppendFormat(&text, "  %-19s %d matrices of %s, to bf16 at its start\n", "widened",
                          count, method);
  }
  absl::StrAppendFormat(&text, "  %-19s up to %s: %s for steps, %s of KV cache\n", "in use",
                        FormatBytes(memory.Most()), FormatBytes(memory.workspace),
                        FormatBytes(memory.kv_cache));
  absl::StrAppendFormat(&text, "  %-19s %d tokens with --kv-cache-bytes=%d, %s a token\n",
                        "KV cache", memory.kv_tokens, memory.kv_cache,
                        FormatBytes(memory.kv_bytes_per_token));
}

void AppendNeed(std::string& text, absl::string_view file, uint64_t needed, uint64_t file_bytes,
                size_t ranges) {
  absl::StrAppendFormat(&text, "  %-33s %s of %s in %d ranges\n", file,
                        FormatBytes(static_cast<int64_t>(needed)),
                        FormatBytes(static_cast<int64_t>(file_bytes)), ranges);
}

void AppendNeeds(std::string& text, const RoleNeeds& needs) {
  AppendLine(text, "needs", absl::StrCat(needs.role, ", beside config, index and tokenizer:"));
  uint64_t needed = 0, published = 0;
  size_t ranges = 0;
  for (const FileNeed& need : needs.files) {
    const size_t count = need.ranges.ranges().size();
    AppendNeed(text, need.file, need.ranges.bytes(), need.file_bytes, count);
    needed += need.ranges.bytes();
    published += need.file_bytes;
    ranges += count;
  }
  if (needs.files.size() > 1) AppendNeed(text, "all files", needed, published, ranges);
}

}  // namespace

std::string InspectionText(const Inspection& inspection) {
  std::string text;
  AppendLine(text, "model", ModelFact(inspection.config));
  AppendLine(text, "experts", ExpertsFact(inspection.config.moe));
  AppendLine(text, "parameters",
             absl::StrCat(Millions(inspection.parameters), ", of which a token passes ",
                          Millions(inspection.active_parameters)));
  AppendLine(text, "digest", inspection.digest);
  AppendLine(text, "files", inspection.path);
  AppendClasses(text, inspection.classes);
  AppendLayers(text, inspection.layers);
  AppendWorkers(text, inspection);
  AppendFrontend(text, inspection);
  for (const std::string& note : inspection.notes) AppendLine(text, "note", note);
  for (const RoleNeeds& needs : inspection.needs) AppendNeeds(text, needs);
  return text;
}

}  // namespace atelier
