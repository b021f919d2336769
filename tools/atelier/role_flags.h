#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/base/flag_table.h"
#include "tools/atelier/role_bytes.h"

namespace atelier {

// Which process a command is asked about: "frontend", "worker", "all" (both), or empty. The others
// say what the worker holds, as its own flags do.
struct RoleFlags {
  std::string role;
  std::string shard_slice = "0/1";
  std::string experts;
  std::string skip_experts;

  bool frontend() const { return role == "frontend" || role == "all"; }
  bool worker() const { return role == "worker" || role == "all"; }
};

// `help`: what --role chooses.
std::vector<FlagSpec> RoleFlagSpecs(std::string help, RoleFlags* flags);

// What can be judged without the model. INVALID_ARGUMENT beginning with the flag.
absl::Status ValidateRole(const RoleFlags& flags);

// The experts that --skip-experts names. Errors begin with the flag.
absl::StatusOr<ExpertSet> SkippedOf(const RoleFlags& flags, const ModelConfig& config);
// The worker's shard. REQUIRES: valid.
ShardSpec ShardOf(const RoleFlags& flags, const ModelConfig& config);
// What that worker reads. Errors as BytesOfWorker's and SkippedOf's, beginning with the flag.
absl::StatusOr<FileBytes> BytesOfWorker(const RoleFlags& flags, const Checkpoint& checkpoint);

}  // namespace atelier
