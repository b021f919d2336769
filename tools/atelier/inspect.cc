#include <array>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/base/termination.h"
#include "libs/checkpoint/checkpoint.h"
#include "services/expert-worker/expert_packing.h"
#include "services/expert-worker/options.h"
#include "tools/atelier/command.h"
#include "tools/atelier/fetch/remote_headers.h"
#include "tools/atelier/fetch/web_flags.h"
#include "tools/atelier/inspection.h"
#include "tools/atelier/role_flags.h"

namespace atelier {
namespace {

constexpr int kMaxWorkers = 1024;
// Headers are small and many.
constexpr int kJobs = 16;

struct InspectFlags {
  InspectFlags() { web.jobs = kJobs; }

  std::string path;
  int workers = 1;
  std::string method = "auto";
  int max_tokens_per_call = WorkerOptions().max_tokens_per_call;
  int gpu_experts = 0;
  int64_t frontend_memory = 0;
  RoleFlags role;
  WebFlags web;
  bool json = false;

  bool is_remote() const { return absl::StrContains(path, "://"); }
};

constexpr char kUsage[] =
    "usage: atelier inspect PATH|URL [flags]\n\n"
    "What a checkpoint is, whether workers and the frontend can serve it and why not, which of\n"
    "this machine's instruction sets would compute it, how much memory each process needs, and\n"
    "(with --role) which bytes of which files it reads. Reads headers only: seconds, whatever the\n"
    "size.\n\n"
    "PATH is what expert-worker --model-path takes, URL what atelier fetch takes: hf://ORG/NAME,\n"
    "https://HOST/ORG/NAME[@REVISION], a folder's URL with / at its end, or a .gguf file's. Of a\n"
    "URL only config, index and headers are read, and nothing is left on this machine.\n\n"
    "examples:\n"
    "  atelier inspect /models/Qwen3-30B-A3B\n"
    "  atelier inspect /models/Qwen3-30B-A3B --workers=2 --method=int8 --frontend-memory=24GiB\n"
    "  atelier inspect /models/Qwen3-30B-A3B --workers=2 --gpu-experts=16\n"
    "  atelier inspect hf://Qwen/Qwen3-30B-A3B --role=worker --shard-slice=0/2\n"
    "  atelier inspect https://huggingface.co/ORG/NAME/resolve/main/m-Q4_K_M.gguf\n"
    "  atelier inspect /models/GLM-4.5-Air --json | jq '.workers'\n\n"
    "exit status: 0 workers and frontend can serve it, 1 one of them cannot, or the checkpoint is\n"
    "broken or out of reach, 2 bad usage.";

FlagTable TableOf(InspectFlags* flags) {
  return FlagTable(
      kUsage,
      {{"Plan",
        {IntFlag("workers", "Workers that share the experts, a slice each.", {1, kMaxWorkers},
                 &flags->workers),
         ChoiceFlag("method", MethodChoices(), "How they keep them, as expert-worker's.",
                    &flags->method),
         IntFlag("max-tokens-per-call", "Rows of their largest batch, as expert-worker's.",
                 {1, 1 << 20}, &flags->max_tokens_per_call),
         IntFlag("gpu-experts",
                 "Experts of each layer that frontends compute on their device and workers skip: "
                 "a plan for frontends of your own, since gpu-frontend computes none itself yet.",
                 {0, 1 << 20}, &flags->gpu_experts),
         BytesFlag("frontend-memory",
                   "What the frontend may take; tells what to give it as --kv-cache-bytes, and "
                   "how many tokens that holds. 0 = with its default.",
                   &flags->frontend_memory)}},
       {"Files",
        RoleFlagSpecs("Whose bytes of the files are listed; all = a frontend's and, apart from "
                      "them, those of the worker that the flags below say.",
                      &flags->role)},
       WebFlagSection(&flags->web),
       {"Output",
        {SwitchFlag("json", "For programs; with --role every range of bytes, [begin, end).",
                    &flags->json)}}});
}

// --skip-experts has a meaning without a role: the plan's workers skip them.
absl::Status CheckRoleIsUsed(const RoleFlags& role) {
  if (role.worker()) return absl::OkStatus();
  for (const auto& [flag, value, otherwise] :
       {std::array{"--shard-slice", role.shard_slice.c_str(), "0/1"},
        std::array{"--experts", role.experts.c_str(), ""}}) {
    if (absl::string_view(value) == otherwise) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "=", value, ": says whose files are listed; add --role=worker or all"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const InspectFlags& flags) {
  if (flags.path.empty()) {
    return absl::InvalidArgumentError("PATH is missing: atelier inspect PATH|URL [flags]");
  }
  if (flags.is_remote()) {
    ATELIER_RETURN_IF_ERROR(ParseRemoteSource(flags.path, flags.web.hub).status());
  }
  if (flags.gpu_experts > 0 && !flags.role.skip_experts.empty()) {
    return absl::InvalidArgumentError(
        "--gpu-experts: give either it, or --skip-experts with the experts themselves");
  }
  ATELIER_RETURN_IF_ERROR(ValidateRole(flags.role));
  return CheckRoleIsUsed(flags.role);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const InspectFlags& flags,
                                                 ScratchFolder& scratch) {
  if (flags.is_remote()) {
    FetcherOptions options;
    ATELIER_ASSIGN_OR_RETURN(options.source, ParseRemoteSource(flags.path, flags.web.hub));
    ApplyWebFlags(flags.web, options);
    const CurlLibrary library;
    return OpenRemoteHeaders(std::move(options), ScratchParents(), scratch);
  }
  auto checkpoint = Checkpoint::Open(flags.path);
  if (!absl::IsNotFound(checkpoint.status()) || absl::StartsWith(flags.path, "/")) {
    return checkpoint;
  }
  return absl::NotFoundError(
      absl::StrCat(checkpoint.status().message(), "; a model of the hub is hf://", flags.path));
}

// Of a role that the checkpoint cannot serve there is nothing to say.
absl::Status AddNeeds(const RoleFlags& flags, const Checkpoint& checkpoint,
                      Inspection& inspection) {
  if (flags.frontend() && inspection.frontend.supported.ok()) {
    ATELIER_ASSIGN_OR_RETURN(const FileBytes bytes, BytesOfFrontend(checkpoint));
    inspection.needs.push_back(NeedsOf("--role=frontend", checkpoint, bytes));
  }
  if (flags.worker() && inspection.worker.supported.ok()) {
    ATELIER_ASSIGN_OR_RETURN(const FileBytes bytes, BytesOfWorker(flags, checkpoint));
    const ModelConfig& config = checkpoint.config();
    inspection.needs.push_back(
        NeedsOf(FetchFlags(ShardOf(flags, config), config.moe.num_experts), checkpoint, bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Inspection> InspectAll(const InspectFlags& flags, const Checkpoint& checkpoint) {
  InspectOptions options;
  options.workers = flags.workers;
  options.method = ParseMethod(absl::AsciiStrToUpper(flags.method));
  options.max_batch_tokens = flags.max_tokens_per_call;
  ATELIER_ASSIGN_OR_RETURN(options.skipped, SkippedOf(flags.role, checkpoint.config()));
  options.gpu_experts = flags.gpu_experts;
  options.frontend_memory = flags.frontend_memory;
  ATELIER_ASSIGN_OR_RETURN(Inspection inspection, Inspect(checkpoint, options));
  inspection.path = flags.path;
  ATELIER_RETURN_IF_ERROR(AddNeeds(flags.role, checkpoint, inspection));
  return inspection;
}

// The exit status.
int InspectAndPrint(const InspectFlags& flags, ScratchFolder& scratch) {
  const auto failed = [](const absl::Status& status) {
    std::cerr << "atelier inspect: " << status.message() << "\n";
    return FailureExitStatus(status);
  };
  const auto checkpoint = Open(flags, scratch);
  if (!checkpoint.ok()) return failed(checkpoint.status());
  const absl::StatusOr<Inspection> inspection = InspectAll(flags, **checkpoint);
  if (!inspection.ok()) {
    // Headers of a URL were read from a folder that is gone.
    return failed(absl::Status(inspection.status().code(),
                               absl::StrReplaceAll(inspection.status().message(),
                                                   {{(*checkpoint)->directory(), flags.path}})));
  }
  std::cout << (flags.json ? InspectionJson(*inspection) : InspectionText(*inspection));
  return inspection->worker.supported.ok() && inspection->frontend.supported.ok() ? 0 : 1;
}

// Leaves nothing behind when it is interrupted.
int InspectWatchingSignals(const InspectFlags& flags) {
  TerminationSignals signals;
  ScratchFolder scratch;
  int status = 1;
  signals.RunWhileWatching([&] { status = InspectAndPrint(flags, scratch); },
                           [&scratch](int number) {
                             scratch.Forbid();
                             std::_Exit(128 + number);
                           });
  return status;
}

}  // namespace

int RunInspect(int argc, const char* const* argv) {
  InspectFlags flags;
  const FlagTable table = TableOf(&flags);
  std::vector<const char*> arguments(argv, argv + argc);
  flags.path = TakeOperand(arguments);
  if (const auto status =
          AnswerCommandLine("atelier inspect", table, static_cast<int>(arguments.size()),
                            arguments.data(), [&flags] { return Validate(flags); })) {
    return *status;
  }
  return InspectWatchingSignals(flags);
}

}  // namespace atelier
