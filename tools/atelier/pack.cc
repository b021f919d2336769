#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/clock.h"
#include "libs/base/command_line.h"
#include "libs/base/log.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/model/shard.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/expert_store.h"
#include "services/expert-worker/expert_store_files.h"
#include "services/expert-worker/options.h"
#include "tools/atelier/command.h"
#include "tools/atelier/terminal_progress.h"

namespace atelier {
namespace {

struct PackOptions {
  WorkerOptions worker;  // what says which weights, as the worker's flags do
  std::string layers;    // a-b, both included; empty = all
  int jobs = 0;          // threads; 0 = as many as a worker would have
  bool verify = false;
  bool errors = true;

  absl::Status Validate() const;
};

absl::Status PackOptions::Validate() const {
  ATELIER_RETURN_IF_ERROR(worker.Validate());
  if (worker.store_dir.empty()) {
    return absl::InvalidArgumentError("--store-dir is required: the folder of the packed files");
  }
  if (layers.empty()) return absl::OkStatus();
  return ParseExpertRange(layers).ok()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   "--layers=", layers, ": must be a-b with a <= b, both included, e.g. 0-15"));
}

constexpr char kUsage[] =
    "usage: atelier pack --model-path=FOLDER --store-dir=FOLDER [flags]\n\n"
    "Packs the experts of a checkpoint into the files that expert-worker --store-dir maps, so\n"
    "that even the first worker starts at once. Give it the --method, --shard-slice and --experts\n"
    "of the workers; what the store has already is kept, so it may be interrupted at any time, "
    "run\n"
    "beside workers that use the store, and run again with other flags. Memory: about one file\n"
    "(half a layer; the start says how much) beside the page cache.\n\n"
    "examples:\n"
    "  atelier pack --model-path=/models/m --store-dir=/var/lib/atelier\n"
    "  atelier pack --model-path=/models/m --store-dir=/var/lib/atelier --method=int8 \\\n"
    "               --shard-slice=0/2      # and once more with 1/2\n"
    "  atelier pack --model-path=/models/m --store-dir=/var/lib/atelier --verify\n\n"
    "exit status: 0 everything is in the store, 1 it is not (with the reason; what was finished\n"
    "is kept), 2 bad usage.";

FlagTable PackFlags(PackOptions* o) {
  return FlagTable(
      kUsage,
      {{"What",
        {StringFlag("model-path", "FOLDER", "The checkpoint. Required.", &o->worker.model_path),
         StringFlag("store-dir", "FOLDER", "Where the files go; must exist. Required.",
                    &o->worker.store_dir),
         ChoiceFlag("method", MethodChoices(), "As expert-worker's: auto keeps what is published.",
                    &o->worker.method),
         StringFlag("shard-slice", "I/N", "The slice that a worker will hold.",
                    &o->worker.shard_slice),
         StringFlag("experts", "A-B", "Only these, both included. Default: all.",
                    &o->worker.experts),
         StringFlag("layers", "A-B", "Only these, both included. Default: all with experts.",
                    &o->layers)}},
       {"How",
        {IntFlag("jobs", "Threads; 0 = one per CPU that this process may use.", {0, 4096},
                 &o->jobs),
         SwitchFlag("verify",
                    "Reads every byte of files that are there already; damaged ones are packed "
                    "anew.",
                    &o->verify),
         SwitchFlag("errors",
                    "Measures what requantising loses, which takes about as long as packing. "
                    "Default: true.",
                    &o->errors)}}});
}

// Layers of the model that have experts and are asked for.
absl::StatusOr<std::vector<int>> ChooseLayers(const ModelConfig& config, const std::string& text) {
  ExpertRange range{0, config.num_layers};
  if (!text.empty()) range = ParseExpertRange(text).value();
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool asked = layer >= range.begin && layer < range.end;
    if (asked && config.is_moe_layer[static_cast<size_t>(layer)]) layers.push_back(layer);
  }
  if (!layers.empty() && range.end <= config.num_layers) return layers;
  return absl::InvalidArgumentError(
      absl::StrCat("--layers=", text, ": the model has layers 0-", config.num_layers - 1,
                   layers.empty() ? ", and none of these has experts" : ""));
}

// Packs one layer after the other and prints what each took.
class Packer {
 public:
  Packer(const PackOptions& options, NodeArena& arena, Clock& clock, ExpertStoreFiles& files)
      : options_(options), arena_(arena), clock_(clock), files_(files) {}

  absl::Status Run(const std::vector<NeededFile>& needs);

 private:
  absl::Status PackLayer(const std::vector<NeededFile>& needs, TerminalProgress& progress);
  absl::StatusOr<PackedFile> FindOrMake(const NeededFile& need);
  // DATA_LOSS for the first expert whose bytes are not those that were written.
  absl::Status Verify(const PackedFile& file);

  const PackOptions& options_;
  NodeArena& arena_;
  Clock& clock_;
  ExpertStoreFiles& files_;
  PackingError error_;  // of all layers
};

absl::Status Packer::Run(const std::vector<NeededFile>& needs) {
  int64_t total = 0;
  size_t largest = 0;
  for (const NeededFile& need : needs) {
    total += static_cast<int64_t>(need.key.data_bytes());
    largest = std::max(largest, need.key.file_bytes());
  }
  ATELIER_ASSIGN_OR_RETURN(const int64_t missing, files_.CheckRoom(needs));
  std::cout << files_.directory() << ": " << needs.size() << " files of " << FormatBytes(total)
            << ", at most " << FormatBytes(static_cast<int64_t>(largest)) << " each; "
            << FormatBytes(missing) << " to be packed" << std::endl;
  const absl::Time start = clock_.Now();
  TerminalProgress progress(total, clock_);
  for (size_t i = 0; i < needs.size(); i += 2) {
    ATELIER_RETURN_IF_ERROR(PackLayer({needs[i], needs[i + 1]}, progress));
  }
  progress.Clear();
  const double seconds = absl::ToDoubleSeconds(clock_.Now() - start);
  std::cout << absl::StrFormat("done in %.1f s: %d files packed, %d were there", seconds,
                               files_.num_made(), needs.size() - files_.num_made());
  if (error_.num_matrices > 0) {
    std::cout << absl::StrFormat("; relative error mean %.4f, worst %.4f", error_.mean,
                                 error_.worst);
  }
  std::cout << std::endl;
  return absl::OkStatus();
}

absl::StatusOr<PackedFile> Packer::FindOrMake(const NeededFile& need) {
  const Logger silent(Severity::kError);
  Progress unused(silent, clock_, "pack", "bytes", 0);
  ATELIER_ASSIGN_OR_RETURN(std::vector<PackedFile> found,
                           files_.FindOrMake({need}, arena_, unused, nullptr));
  return std::move(found[0]);
}

absl::Status Packer::Verify(const PackedFile& file) {
  const ExpertRange experts = file.key().experts;
  std::vector<absl::Status> results(file.key().num_experts());
  arena_.ParallelFor(static_cast<int64_t>(results.size()), [&](int64_t i) {
    results[static_cast<size_t>(i)] = file.VerifyExpert(experts.begin + static_cast<int>(i));
  });
  for (const absl::Status& result : results) ATELIER_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status Packer::PackLayer(const std::vector<NeededFile>& needs, TerminalProgress& progress) {
  const int layer = needs[0].key.layer;
  PackingError error;
  int made = 0;
  for (const NeededFile& need : needs) {
    progress.Show();
    const int before = files_.num_made();
    absl::StatusOr<PackedFile> file = FindOrMake(need);
    ATELIER_RETURN_IF_ERROR(file.status());
    if (need.key.part == PackedPart::kDown &&
        file->key().columns.size() != need.key.columns.size()) {
      return absl::PermissionDeniedError(absl::StrCat(files_.directory(), "/", need.key.FileName(),
                                                      " is not there and cannot be written"));
    }
    if (const absl::Status sound = options_.verify ? Verify(*file) : absl::OkStatus();
        !sound.ok()) {
      progress.Clear();
      std::cerr << "atelier pack: " << sound.message() << "; packing it anew" << std::endl;
      if (std::remove(file->path().c_str()) != 0) return sound;
      file = FindOrMake(need);
      ATELIER_RETURN_IF_ERROR(file.status());
    }
    const int made_here = files_.num_made() - before;
    if (made_here > 0 && options_.errors) {
      ATELIER_ASSIGN_OR_RETURN(const PackingError part, files_.MeasureError(need.key, arena_));
      error.Add(part);
    }
    made += made_here;
    progress.Add(static_cast<int64_t>(need.key.data_bytes()), made_here == 0);
  }
  error_.Add(error);
  progress.Clear();
  std::cout << "layer " << layer << ": "
            << (made == 0 ? std::string("there") : absl::StrCat(made, " files packed"));
  if (error.num_matrices > 0) {
    std::cout << absl::StrFormat(", relative error mean %.4f, worst %.4f (%s)", error.mean,
                                 error.worst, error.worst_matrix);
  }
  std::cout << std::endl;
  return absl::OkStatus();
}

absl::Status Pack(const PackOptions& options) {
  SystemClock clock;
  const Logger logger(Severity::kWarning);
  const WorkerOptions& worker = options.worker;
  absl::StatusOr<std::unique_ptr<NodeArena>> arena =
      NodeArena::Create({-1, options.jobs, /*pin_threads=*/false}, Topology::Detect(), logger);
  ATELIER_RETURN_IF_ERROR(NameFlags(arena.status(), {{"num_threads=", "--jobs="}}));
  ATELIER_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(worker.model_path));
  const absl::StatusOr<LayerMethods> methods = ChooseMethods(*checkpoint, worker.RequestedMethod());
  ATELIER_RETURN_IF_ERROR(NameFlags(methods.status(), {{"method=", "--method="}}));
  const ModelConfig& config = checkpoint->config();
  ShardSpec shard = worker.Shard(config.moe.num_experts);
  ATELIER_ASSIGN_OR_RETURN(shard.layers, ChooseLayers(config, options.layers));
  const absl::StatusOr<std::vector<ShardPlan>> plans =
      ExpertStore::Plan(*checkpoint, {shard}, *methods);
  ATELIER_RETURN_IF_ERROR(
      NameFlags(plans.status(), {{"experts ", "--experts="}, {"slice ", "--shard-slice="}}));
  const PackedFileSystem system = PackedFileSystem::Real();
  absl::StatusOr<ExpertStoreFiles> files =
      ExpertStoreFiles::Open(*checkpoint, *methods, worker.store_dir, system, logger);
  ATELIER_RETURN_IF_ERROR(files.status());
  return Packer(options, **arena, clock, *files).Run(files->Needs((*plans)[0]));
}

}  // namespace

int RunPack(int argc, const char* const* argv) {
  PackOptions options;
  const FlagTable flags = PackFlags(&options);
  if (const auto status = AnswerCommandLine("atelier pack", flags, argc, argv,
                                            [&options] { return options.Validate(); })) {
    return *status;
  }
  const absl::Status packed = Pack(options);
  if (packed.ok()) return 0;
  std::cerr << "atelier pack: " << packed.message() << std::endl;
  return FailureExitStatus(packed);
}

}  // namespace atelier
