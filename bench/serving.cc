// Tokens per second of real processes: experts beside the frontend against experts in its process,
// several frontends of one worker, and what the loss of a replica costs.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/support/far_link.h"
#include "bench/support/serving_experiments.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

constexpr absl::Duration kFarDelay = absl::Microseconds(200);
constexpr char kSmallModelPatch[] = R"({"num_experts": 16, "num_experts_per_tok": 4})";

struct Options {
  std::string json;
  std::string only;
  std::string model;
  bool small_model = false;
  int threads = 1;
  bool quick = false;

  absl::Status Validate() const {
    if (!only.empty() && only != "ways" && only != "frontends" && only != "loss") {
      return absl::InvalidArgumentError(
          absl::StrCat("--only=", only, ": there are ways, frontends and loss"));
    }
    if (small_model && !model.empty()) {
      return absl::InvalidArgumentError("--small-model: not together with --model");
    }
    return absl::OkStatus();
  }
};

constexpr char kUsage[] =
    "usage: scripts/bench serving [flags]\n"
    "\n"
    "Tokens per second of real expert-worker and gpu-frontend processes:\n"
    "  ways       one stream with the experts in the frontend's process, and in a worker over\n"
    "             shared memory, gRPC and a link that delays by 0.2 ms (needs root); eight\n"
    "             streams\n"
    "  frontends  four streams over one, two and four frontends of one worker\n"
    "  loss       one of two replicas killed, started again and frozen, under one stream (which\n"
    "             leaves capacity unused) and under eight: throughput before, at the loss, after "
    "it\n"
    "             and with the replica back, how long each step takes, and the longest waits\n"
    "Variants take turns; figures are medians of the rounds, with their range. Each target of the\n"
    "design stands beside what was measured: `holds` or `does not hold`. Each process computes on\n"
    "--threads CPUs, so a machine of fewer CPUs than processes times threads measures itself.\n"
    "exit status: 0 measured, whatever holds; 1 an answer was lost or differs, or nothing could "
    "be\n"
    "measured; 2 bad flags.";

FlagTable Flags(Options* o) {
  return FlagTable(
      kUsage,
      {{"Run",
        {SwitchFlag("quick", "One round of short windows: whether it works, not how fast.",
                    &o->quick),
         StringFlag("only", "NAME", "Only ways, frontends or loss.", &o->only),
         StringFlag("json", "PATH", "Also writes the results there, a line each.", &o->json),
         IntFlag("threads", "Of each worker and of each frontend.", {1, 1024}, &o->threads),
         StringFlag("model", "PATH",
                    "A checkpoint. Default: the demo model of scripts/demo, in build/.", &o->model),
         SwitchFlag("small-model",
                    "Instead of --model: one of random weights, whose tokens take no time.",
                    &o->small_model)}}});
}

std::string ProgramFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

absl::StatusOr<std::string> FindModel(const Options& options, const std::string& run_dir) {
  if (!options.model.empty()) return options.model;
  if (options.small_model) {
    const std::string model = run_dir + "/model";
    testing::WriteSyntheticCheckpoint(
        model, {.config_json = testing::TinyQwen3MoeConfig(kSmallModelPatch), .seed = 1});
    return model;
  }
  // build/release/bin is where the programs are.
  const std::string model =
      std::filesystem::path(ProgramFolder() + "/../../demo-model").lexically_normal().string();
  if (std::filesystem::exists(model + "/config.json")) return model;
  return absl::NotFoundError(absl::StrCat(
      "no demo model in ", model, ": run scripts/demo once, or give --model or --small-model"));
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

absl::Status Measure(const Options& options, const FarLink* far, const std::string& no_far) {
  const testing::TempDir run_dir;
  ATELIER_ASSIGN_OR_RETURN(const std::string model, FindModel(options, run_dir.path()));
  ATELIER_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model));
  const ModelConfig& config = checkpoint->config();
  ServingReport report(options.json);
  ServingSetup setup{.cluster = {.programs = ProgramFolder(),
                                 .model = model,
                                 .run_dir = run_dir.path(),
                                 .name = "",
                                 .threads = options.threads,
                                 .far_namespace = far == nullptr ? -1 : far->network_namespace()},
                     .num_moe_layers = config.num_moe_layers(),
                     .vocab_size = static_cast<uint32_t>(config.vocab_size),
                     .window = options.quick ? 0.5 : 2,
                     .rounds = options.quick ? 1 : 5,
                     .far = far,
                     .no_far = no_far,
                     .report = report};
  report.AddFacts({{"model", model},
                   {"CPUs", absl::StrCat(std::thread::hardware_concurrency())},
                   {"threads of a process", absl::StrCat(options.threads)},
                   {"rounds", absl::StrCat(setup.rounds, " of ", setup.window, " s")},
                   {"load at start", FirstLine("/proc/loadavg")}});
  ATELIER_RETURN_IF_ERROR(report.Written());
  const auto wanted = [&](const char* name) {
    return options.only.empty() || options.only == name;
  };
  if (wanted("ways")) ATELIER_RETURN_IF_ERROR(MeasureWays(setup));
  if (wanted("frontends")) ATELIER_RETURN_IF_ERROR(MeasureFrontends(setup));
  if (wanted("loss")) ATELIER_RETURN_IF_ERROR(MeasureLoss(setup));
  return report.Written();
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::Options options;
  const atelier::FlagTable flags = atelier::Flags(&options);
  if (const auto status = atelier::AnswerCommandLine("serving", flags, argc, argv,
                                                     [&] { return options.Validate(); })) {
    return *status;
  }
  // First of all: it forks, and gRPC must not have started then.
  const auto far = atelier::FarLink::Start(atelier::kFarDelay);
  const absl::Status status = atelier::Measure(options, far.ok() ? far->get() : nullptr,
                                               std::string(far.status().message()));
  if (status.ok()) return 0;
  std::cerr << "serving: " << status.message() << "\n";
  return 1;
}
