#include "tests/e2e/faults/options.h"

#include "absl/strings/str_cat.h"

namespace atelier::faults {
namespace {

constexpr char kUsage[] =
    "usage: scripts/faults [--kills N] [--seed S] [--only NAME] [flags]\n"
    "\n"
    "Starts real expert-worker and gpu-frontend processes over a small model, streams requests "
    "from\n"
    "them without a pause, and meanwhile kills, freezes, slows and cuts off one after the other.\n"
    "Every sequence must equal the one of the quiet beginning bit for bit. The last line counts;\n"
    "exit status 0 when nothing was lost, nothing changed and nothing else went wrong.\n"
    "\n"
    "examples:\n"
    "  scripts/faults --list\n"
    "  scripts/faults --kills 50                    all kinds, at least 50 processes killed\n"
    "  scripts/faults --kills 50 --seed 7           the same faults again as any run of seed 7\n"
    "  scripts/faults --kills 20 --only stop        20 frozen workers\n"
    "  scripts/faults --kills 5 --only kill --replicas 1    is bound to lose sequences";

}  // namespace

absl::Status Options::Validate() const {
  if (!only.empty() && FindFault(only) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--only=", only, ": there is no such fault; there are:\n", MenuText()));
  }
  return absl::OkStatus();
}

FlagTable Flags(Options* o) {
  return FlagTable(
      kUsage,
      {{"Faults",
        {IntFlag("kills", "Processes to kill, at least; of a fault that kills none: such faults.",
                 {1, 1000000}, &o->kills),
         IntFlag("seed", "Of the faults and of the requests.", {0, int64_t{1} << 62}, &o->seed),
         StringFlag("only", "NAME", "Only this fault; see --list.", &o->only),
         SwitchFlag("list", "Prints the faults and ends.", &o->list)}},
       {"What they happen to",
        {IntFlag("slices", "Parts of each expert; each part is a shard.", {1, 8}, &o->slices),
         IntFlag("replicas", "Workers that hold each shard.", {1, 4}, &o->replicas),
         IntFlag("frontends", "The first is never killed.", {1, 4}, &o->frontends),
         IntFlag("clients", "Concurrent streams of each frontend.", {1, 64}, &o->clients),
         ChoiceFlag("method", {"mixed", "bf16", "int8"},
                    "How workers keep experts; mixed = bf16 and int8 by turns over the shards.",
                    &o->method),
         StringFlag("model", "PATH", "A checkpoint. Default: a small one of random weights.",
                    &o->model)}},
       {"Where",
        {StringFlag("run-dir", "FOLDER",
                    "Logs, sockets and packed weights. Default: one that is removed at the end.",
                    &o->run_dir),
         StringFlag("programs", "FOLDER",
                    "Holds expert-worker and gpu-frontend. Default: this program's.",
                    &o->programs)}}});
}

}  // namespace atelier::faults
