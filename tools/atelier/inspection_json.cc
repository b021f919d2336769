#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/atelier/inspection.h"

namespace atelier {
namespace {

using nlohmann::json;

json RoleJson(const RoleReport& report) {
  return {{"supported", report.supported.ok()},
          {"reason", std::string(report.supported.message())},
          {"file_bytes", report.bytes}};
}

json ModelJson(const ModelConfig& config) {
  return {{"model_type", config.model_type},
          {"architectures", config.architectures},
          {"num_layers", config.num_layers},
          {"num_moe_layers", config.num_moe_layers()},
          {"hidden_size", config.hidden_size},
          {"vocab_size", config.vocab_size},
          {"context_length", config.max_position_embeddings},
          {"num_experts", config.moe.num_experts},
          {"top_k", config.moe.top_k},
          {"expert_intermediate_size", config.moe.intermediate_size},
          {"shared_intermediate_size", config.moe.shared_intermediate_size}};
}

json WorkerJson(const std::string& slice, const WorkerMemoryPlan& memory) {
  return {{"shard_slice", slice},
          {"weight_bytes", memory.weights},
          {"process_bytes", memory.process},
          {"batch_bytes", memory.batch},
          {"resident_bytes", memory.Resident()},
          {"most_bytes", memory.Most()}};
}

json FrontendJson(const FrontendMemory& memory) {
  return {{"weight_bytes", memory.weights},
          {"process_bytes", memory.process},
          {"workspace_bytes", memory.workspace},
          {"gpu_expert_bytes", memory.gpu_experts},
          {"kv_bytes_per_token", memory.kv_bytes_per_token},
          {"kv_cache_bytes", memory.kv_cache},
          {"kv_tokens", memory.kv_tokens},
          {"resident_bytes", memory.Resident()},
          {"most_bytes", memory.Most()}};
}

// Ranges as [begin, end): the end is not included.
json NeedsJson(const RoleNeeds& needs) {
  json files = json::array();
  for (const FileNeed& need : needs.files) {
    json ranges = json::array();
    for (const ByteRange& range : need.ranges.ranges()) ranges.push_back({range.begin, range.end});
    files.push_back({{"file", need.file},
                     {"file_bytes", need.file_bytes},
                     {"needed_bytes", need.ranges.bytes()},
                     {"ranges", ranges}});
  }
  return {{"role", needs.role}, {"files", files}};
}

}  // namespace

std::string InspectionJson(const Inspection& inspection) {
  json classes = json::array(), layers = json::array(), kernels = json::array(),
       workers = json::array(), needs = json::array();
  for (const TensorClass& c : inspection.classes) {
    classes.push_back(
        {{"name", c.name}, {"tensors", c.tensors}, {"bytes", c.bytes}, {"formats", c.bytes_of}});
  }
  for (const LayerSize& layer : inspection.layers) {
    layers.push_back({{"is_moe", layer.is_moe},
                      {"frontend_bytes", layer.frontend_bytes},
                      {"expert_bytes", layer.expert_bytes}});
  }
  for (const auto& [method, isa] : inspection.kernels) {
    kernels.push_back({{"method", method}, {"isa", isa}});
  }
  for (size_t slice = 0; slice < inspection.workers.size(); ++slice) {
    workers.push_back(
        WorkerJson(absl::StrCat(slice, "/", inspection.workers.size()), inspection.workers[slice]));
  }
  for (const RoleNeeds& of_role : inspection.needs) needs.push_back(NeedsJson(of_role));
  const json document = {
      {"path", inspection.path},
      {"digest", inspection.digest},
      {"model", ModelJson(inspection.config)},
      {"parameters", inspection.parameters},
      {"active_parameters", inspection.active_parameters},
      {"tensors", classes},
      {"layers", layers},
      {"roles",
       {{"frontend", RoleJson(inspection.frontend)}, {"worker", RoleJson(inspection.worker)}}},
      {"methods", inspection.methods},
      {"kernels", kernels},
      {"workers", workers},
      {"max_batch_tokens", inspection.max_batch_tokens},
      {"frontend", FrontendJson(inspection.frontend_memory)},
      {"frontend_widens", inspection.widened},
      {"notes", inspection.notes},
      {"needs", needs}};
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace atelier
