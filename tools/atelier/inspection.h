#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/dtype.h"
#include "libs/model/expert_set.h"
#include "services/expert-worker/memory_plan.h"
#include "services/expert-worker/shard_plan.h"
#include "tools/atelier/frontend_memory.h"
#include "tools/atelier/role_bytes.h"

namespace atelier {

// Tensors that do the same in a model.
struct TensorClass {
  std::string name;  // "routed experts", "attention", …
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::map<std::string, int64_t> bytes_of;  // by element type as the file says it
};

struct LayerSize {
  bool is_moe = false;
  int64_t frontend_bytes = 0;  // in the files: all but routed experts
  int64_t expert_bytes = 0;    // in the files: routed experts
};

// What one kind of process makes of the checkpoint.
struct RoleReport {
  absl::Status supported;  // why not
  int64_t bytes = 0;       // in the files, of the tensors that it reads
};

struct InspectOptions {
  int workers = 1;                              // that share the experts, a slice each
  std::optional<Method> method = std::nullopt;  // as --method of the workers; unset = as published
  int max_batch_tokens = 8192;                  // as their --max-tokens-per-call
  ExpertSet skipped = {};                       // as their --skip-experts
  int gpu_experts = 0;          // of each layer that frontends compute themselves, beside `skipped`
  int64_t frontend_memory = 0;  // what the frontend may take; 0 = its default KV cache
};

// What one process reads of a file; all of them read its header and the ends of its data.
struct FileNeed {
  std::string file;
  uint64_t file_bytes = 0;
  ByteRanges ranges;
};
struct RoleNeeds {
  std::string role;  // as `atelier fetch` takes it: "--role=worker --shard-slice=0/2"
  std::vector<FileNeed> files;
};
RoleNeeds NeedsOf(std::string role, const Checkpoint& checkpoint, const FileBytes& bytes);

// What a checkpoint is and what it needs, from its headers alone.
struct Inspection {
  std::string path;
  std::string digest;
  ModelConfig config;
  int64_t parameters = 0;
  int64_t active_parameters = 0;  // that one token passes, the embedding's table included
  std::vector<TensorClass> classes;
  std::vector<LayerSize> layers;
  RoleReport frontend;
  RoleReport worker;
  std::string methods;                              // how workers keep the experts
  std::vector<std::pair<std::string, std::string>>  // method and the instruction set that
      kernels;                                      // computes it on this machine
  std::vector<WorkerMemoryPlan> workers;            // by slice
  int max_batch_tokens = 0;                         // that they are planned for
  FrontendMemory frontend_memory;
  std::map<std::string, int64_t> widened;  // matrices that the frontend keeps as bf16, by the
                                           // method in which they are published
  std::vector<std::string> notes;          // on what the plan assumes
  std::vector<RoleNeeds> needs;  // of the roles that were asked about; Inspect leaves it empty
};

// INVALID_ARGUMENT for a number of workers, a method or a number of experts that the model cannot
// be served with (the message begins with the flag), RESOURCE_EXHAUSTED where the frontend exceeds
// its memory without a KV cache. What a role cannot serve is no error but in its report.
absl::StatusOr<Inspection> Inspect(const Checkpoint& checkpoint, const InspectOptions& options);

std::string InspectionText(const Inspection& inspection);
std::string InspectionJson(const Inspection& inspection);

}  // namespace atelier
