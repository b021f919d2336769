#include "tools/atelier/role_flags.h"

#include <utility>

#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/expert_set_file.h"
#include "libs/model/shard.h"

namespace atelier {
std::vector<FlagSpec> RoleFlagSpecs(std::string help, RoleFlags* flags) {
  return {ChoiceFlag("role", {"frontend", "worker", "all"}, std::move(help), &flags->role),
          StringFlag("shard-slice", "I/N", "As the worker's.", &flags->shard_slice),
          StringFlag("experts", "A-B", "As the worker's: only these, both included. Default: all.",
                     &flags->experts),
          StringFlag("skip-experts", "FILE", "As the worker's: not the experts that it names.",
                     &flags->skip_experts)};
}

absl::Status ValidateRole(const RoleFlags& flags) {
  ATELIER_RETURN_IF_ERROR(
      NameFlags(ParseSlice(flags.shard_slice).status(), {{"", "--shard-slice: "}}));
  if (flags.experts.empty()) return absl::OkStatus();
  return NameFlags(ParseExpertRange(flags.experts).status(), {{"", "--experts: "}});
}

absl::StatusOr<ExpertSet> SkippedOf(const RoleFlags& flags, const ModelConfig& config) {
  if (flags.skip_experts.empty()) return ExpertSet();
  absl::StatusOr<ExpertSet> skipped = ReadExpertSet(flags.skip_experts, config);
  if (!skipped.ok()) return NameFlags(skipped.status(), {{"", "--skip-experts: "}});
  return skipped;
}

ShardSpec ShardOf(const RoleFlags& flags, const ModelConfig& config) {
  return ShardNamed(flags.shard_slice, flags.experts, config.moe.num_experts);
}

absl::StatusOr<FileBytes> BytesOfWorker(const RoleFlags& flags, const Checkpoint& checkpoint) {
  ATELIER_RETURN_IF_ERROR(VerifyTensors(checkpoint, Role::kWorker));
  ATELIER_ASSIGN_OR_RETURN(const ExpertSet skipped, SkippedOf(flags, checkpoint.config()));
  absl::StatusOr<FileBytes> bytes =
      BytesOfWorker(checkpoint, ShardOf(flags, checkpoint.config()), skipped);
  if (bytes.ok()) return bytes;
  return NameFlags(bytes.status(), {{"experts ", "--experts="}, {"slice ", "--shard-slice="}});
}

}  // namespace atelier
