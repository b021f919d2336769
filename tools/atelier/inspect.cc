#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "services/expert-worker/options.h"
#include "tools/atelier/command.h"
#include "tools/atelier/inspection.h"

namespace atelier {
namespace {

constexpr int kMaxWorkers = 1024;

struct InspectFlags {
  std::string path;
  int workers = 1;
  std::string method = "auto";
  int64_t frontend_memory = 0;
  bool json = false;
};

FlagTable TableOf(InspectFlags* flags) {
  return FlagTable(
      "usage: atelier inspect PATH [flags]\n\n"
      "What a checkpoint is, whether workers and the frontend can serve it and why not, which of\n"
      "this machine's instruction sets would compute it, and how much memory each process needs.\n"
      "PATH is what expert-worker --model-path takes. Reads headers only: seconds, whatever the\n"
      "size.\n\n"
      "examples:\n"
      "  atelier inspect /models/Qwen3-30B-A3B\n"
      "  atelier inspect /models/Qwen3-30B-A3B --workers=2 --method=int8 --frontend-memory=24GiB\n"
      "  atelier inspect /models/GLM-4.5-Air --json | jq '.workers'\n\n"
      "exit status: 0 workers and frontend can serve it, 1 one of them cannot, or the checkpoint "
      "is\n"
      "broken, 2 bad usage.",
      {{"Plan",
        {IntFlag("workers", "Workers that share the experts, a slice each.", {1, kMaxWorkers},
                 &flags->workers),
         ChoiceFlag("method", MethodChoices(), "How they keep them, as expert-worker's.",
                    &flags->method),
         BytesFlag("frontend-memory",
                   "What the frontend may take; tells how many tokens its KV cache then holds.",
                   &flags->frontend_memory)}},
       {"Output", {SwitchFlag("json", "For programs.", &flags->json)}}});
}

absl::Status Validate(const InspectFlags& flags) {
  if (flags.path.empty()) {
    return absl::InvalidArgumentError("PATH is missing: atelier inspect PATH [flags]");
  }
  if (absl::StrContains(flags.path, "://")) {
    return absl::UnimplementedError(absl::StrCat(
        flags.path, ": this version reads local files only; download config.json and the index ",
        "with the headers first"));
  }
  return absl::OkStatus();
}

// The exit status.
absl::StatusOr<int> InspectAndPrint(const InspectFlags& flags) {
  ATELIER_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(flags.path));
  const InspectOptions options{flags.workers, ParseMethod(absl::AsciiStrToUpper(flags.method)),
                               flags.frontend_memory};
  ATELIER_ASSIGN_OR_RETURN(const Inspection inspection, Inspect(*checkpoint, options));
  std::cout << (flags.json ? InspectionJson(inspection) : InspectionText(inspection));
  return inspection.worker.supported.ok() && inspection.frontend.supported.ok() ? 0 : 1;
}

}  // namespace

int RunInspect(int argc, const char* const* argv) {
  InspectFlags flags;
  const FlagTable table = TableOf(&flags);
  std::vector<const char*> arguments(argv, argv + argc);
  if (argc > 1 && !absl::StartsWith(argv[1], "-")) {
    flags.path = argv[1];
    arguments.erase(arguments.begin() + 1);
  }
  if (const auto status =
          AnswerCommandLine("atelier inspect", table, static_cast<int>(arguments.size()),
                            arguments.data(), [&flags] { return Validate(flags); })) {
    return *status;
  }
  const absl::StatusOr<int> status = InspectAndPrint(flags);
  if (status.ok()) return *status;
  std::cerr << "atelier inspect: " << status.status().message() << "\n";
  return FailureExitStatus(status.status());
}

}  // namespace atelier
