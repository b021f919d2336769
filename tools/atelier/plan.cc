#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/base/whole_file.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/mapped_file.h"
#include "services/expert-worker/options.h"
#include "tools/atelier/command.h"
#include "tools/atelier/placement_plan.h"

namespace atelier {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr size_t kMaxInputBytes = kMaxPlacementFileBytes;

struct PlanFlags {
  std::string path;
  std::string workers;
  int64_t memory = 0;
  std::string current;
  std::string loads;
  int batch = 1;
  std::string method = "auto";
  int copies = 0;
  int extra_copies = 0;
  std::string apart = "auto";
  int blocks = 0;
  int slices = 1;
  int tolerance = 2;
  std::string out;
  bool json = false;
};

constexpr char kUsage[] =
    "usage: atelier plan PATH --workers=N|FILE [flags]\n\n"
    "Decides which worker holds which experts of a checkpoint, so that no loss of a worker, NUMA\n"
    "node or host takes the last copy of any, every worker is about equally busy, nobody's memory\n"
    "is exceeded, and little moves from the placement of today. Prints what comes of it, and with\n"
    "--out writes the file that expert-worker --placement reads. PATH is what expert-worker\n"
    "--model-path takes; only headers are read.\n\n"
    "examples:\n"
    "  atelier plan /models/m --workers=4 --memory=96GiB --out=placement.json\n"
    "  expert-worker --model-path=/models/m --placement=placement.json --worker=worker-0\n"
    "  atelier plan /models/m --workers=cluster.json --loads=counts.json --batch=16 --json\n"
    "  atelier plan /models/m --workers=cluster.json --current=placement.json --out=next.json\n\n"
    "cluster.json: {\"workers\": [{\"name\": \"a\", \"host\": \"h1\", \"numa_node\": 0,\n"
    "  \"memory_bytes\": 103079215104}, …]}; counts.json: {\"expert_loads\": {\"LAYER\": [a "
    "number\n"
    "  for each expert], …}}\n\n"
    "exit status: 0 planned, 1 it cannot be (too little memory, with the missing bytes; too few\n"
    "domains; a broken checkpoint; --out cannot be written), 2 bad usage.";

FlagTable TableOf(PlanFlags* f) {
  return FlagTable(
      kUsage,
      {{"Workers",
        {StringFlag("workers", "N|FILE",
                    "N workers named worker-0 … on a host each, or a file that lists them (see "
                    "above; a placement file will do). Default: those of --current.",
                    &f->workers),
         BytesFlag("memory", "What a worker whose memory_bytes the file does not give may take.",
                   &f->memory),
         StringFlag("current", "FILE",
                    "The placement file of today: its parts stay as they are, few move, and "
                    "copies on workers that are gone are made again.",
                    &f->current)}},
       {"Load",
        {StringFlag("loads", "FILE",
                    "How often each expert is chosen (see above). Default: all alike.", &f->loads),
         IntFlag("batch", "Tokens that are decoded together: the more, the more experts are read.",
                 {1, 1 << 20}, &f->batch),
         ChoiceFlag("method", MethodChoices(), "How workers keep experts, as expert-worker's.",
                    &f->method)}},
       {"Placement",
        {IntFlag("copies", "Of every expert, at least; 0 = two, of a single worker one.", {0, 64},
                 &f->copies),
         IntFlag("extra-copies",
                 "More of each layer, for its hottest parts, as far as memory reaches.",
                 {0, 1 << 16}, &f->extra_copies),
         ChoiceFlag("apart", {"auto", "worker", "numa", "host"},
                    "No two copies of an expert in one such domain. auto = the widest that can be "
                    "kept.",
                    &f->apart),
         IntFlag("blocks",
                 "Runs of experts that are placed whole. Each is a sum more in a worker's answer. "
                 "0 = those of --current, else as few as give a balancedness of 0.95.",
                 {0, 4096}, &f->blocks),
         IntFlag("slices", "Parts that each expert's intermediate dimension is cut into.",
                 {1, kMaxWorkers}, &f->slices),
         IntFlag("tolerance",
                 "With --current: percent by which the busiest worker of a layer may exceed that "
                 "of a placement made anew, to move less.",
                 {0, 1000}, &f->tolerance)}},
       {"Output",
        {StringFlag("out", "FILE", "Where the placement goes. Default: it is only described.",
                    &f->out),
         SwitchFlag("json", "For programs.", &f->json)}}});
}

absl::Status Validate(const PlanFlags& flags) {
  if (flags.path.empty()) {
    return absl::InvalidArgumentError("PATH is missing: atelier plan PATH --workers=N|FILE");
  }
  if (flags.workers.empty() && flags.current.empty()) {
    return absl::InvalidArgumentError("--workers is required, unless --current lists them");
  }
  int count = 0;
  if (absl::SimpleAtoi(flags.workers, &count) && (count < 1 || count > kMaxWorkers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers=", flags.workers, ": must be from 1 to ", kMaxWorkers));
  }
  return NameFlags(CheckReplaceable(flags.out), {{"", absl::StrCat("--out=", flags.out, ": ")}});
}

// Parses a file; what is wrong with it begins with the flag.
template <typename Parse>
auto ReadFile(const std::string& flag, const std::string& path, Parse parse)
    -> decltype(parse(absl::string_view(), absl::string_view())) {
  const std::string named = absl::StrCat(flag, "=", path);
  const auto file = MappedFile::OpenSmall(path, kMaxInputBytes);
  if (file.ok()) return parse(file->text(), named);
  return absl::InvalidArgumentError(absl::StrCat(named, ": ", file.status().message()));
}

absl::StatusOr<std::vector<PlacedWorker>> WorkersOf(const PlanFlags& flags,
                                                    const PlanOptions& options) {
  std::vector<PlacedWorker> workers;
  int count = 0;
  if (flags.workers.empty()) {
    workers = options.current->workers;
  } else if (absl::SimpleAtoi(flags.workers, &count)) {
    for (int i = 0; i < count; ++i) {
      workers.push_back({absl::StrCat("worker-", i), absl::StrCat("host-", i), 0, 0, {}});
    }
  } else {
    ATELIER_ASSIGN_OR_RETURN(workers, ReadFile("--workers", flags.workers, ParseWorkerList));
  }
  for (PlacedWorker& worker : workers) {
    if (worker.memory_bytes == 0) worker.memory_bytes = flags.memory;
    if (worker.memory_bytes > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--memory: must say what worker ", worker.name,
                                                   " may take, whose memory_bytes are not given"));
  }
  return workers;
}

std::optional<FailureDomain> ApartOf(const std::string& choice) {
  if (choice == "worker") return FailureDomain::kWorker;
  if (choice == "numa") return FailureDomain::kNumaNode;
  if (choice == "host") return FailureDomain::kHost;
  return std::nullopt;
}

// A file written by hand may name no model.
absl::Status CheckModel(const std::string& path, const PlacementFile& current,
                        const Checkpoint& checkpoint) {
  if (current.model_digest.empty() || current.model_digest == checkpoint.digest()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "--current=", path, ": model_digest is ", current.model_digest, " and that of PATH ",
      checkpoint.digest(), ": another model's placement; plan without --current"));
}

absl::StatusOr<PlanOptions> OptionsOf(const PlanFlags& flags, const Checkpoint& checkpoint) {
  PlanOptions options;
  options.method = ParseMethod(absl::AsciiStrToUpper(flags.method));
  options.copies = flags.copies;
  options.extra_copies = flags.extra_copies;
  options.apart = ApartOf(flags.apart);
  options.tolerance = flags.tolerance / 100.0;
  options.blocks = flags.blocks;
  options.slices = flags.slices;
  options.batch = flags.batch;
  if (!flags.current.empty()) {
    ATELIER_ASSIGN_OR_RETURN(options.current,
                             ReadFile("--current", flags.current, PlacementFile::Parse));
    ATELIER_RETURN_IF_ERROR(CheckModel(flags.current, *options.current, checkpoint));
  }
  if (!flags.loads.empty()) {
    const auto parse = [&checkpoint](absl::string_view text, absl::string_view file) {
      return ParseExpertLoads(text, file, checkpoint.config());
    };
    ATELIER_ASSIGN_OR_RETURN(options.loads, ReadFile("--loads", flags.loads, parse));
  }
  ATELIER_ASSIGN_OR_RETURN(options.workers, WorkersOf(flags, options));
  return options;
}

// All of it or nothing: workers may be starting from it.
absl::Status WritePlacement(const std::string& path, const PlacementFile& placement) {
  const absl::Status written = WriteWholeFile(path, placement.ToJson());
  if (written.ok()) return written;
  return absl::Status(written.code(),
                      absl::StrCat("the file of --out=", path, ": ", written.message()));
}

absl::Status PlanAndPrint(const PlanFlags& flags) {
  ATELIER_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(flags.path));
  ATELIER_ASSIGN_OR_RETURN(const PlanOptions options, OptionsOf(flags, *checkpoint));
  ATELIER_ASSIGN_OR_RETURN(const PlannedPlacement planned, PlanModel(*checkpoint, options));
  if (!flags.out.empty()) ATELIER_RETURN_IF_ERROR(WritePlacement(flags.out, planned.file));
  std::cout << (flags.json ? PlacementJson(planned) : PlacementText(planned));
  return absl::OkStatus();
}

}  // namespace

int RunPlan(int argc, const char* const* argv) {
  PlanFlags flags;
  const FlagTable table = TableOf(&flags);
  std::vector<const char*> arguments(argv, argv + argc);
  flags.path = TakeOperand(arguments);
  if (const auto status =
          AnswerCommandLine("atelier plan", table, static_cast<int>(arguments.size()),
                            arguments.data(), [&flags] { return Validate(flags); })) {
    return *status;
  }
  const absl::Status status = PlanAndPrint(flags);
  if (status.ok()) return 0;
  std::cerr << "atelier plan: " << status.message() << "\n";
  return FailureExitStatus(status);
}

}  // namespace atelier
