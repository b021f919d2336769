#include "bench/support/ffn_options.h"

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "libs/base/status_macros.h"
#include "libs/kernels/kernel_table.h"

namespace atelier {
namespace {

constexpr char kUsage[] =
    "Measures how fast the experts of one MoE layer are computed on this machine, beside what the "
    "machine can do at best: first the limits (read bandwidth, int8 and bf16 multiply-adds of each "
    "instruction set, the best of many short runs), then batches of tokens through the executor "
    "that expert-worker runs, on "
    "random weights that are larger than the caches.\n\n"
    "Columns: us and best = median and least time of a batch; GB/s = packed weight bytes touched "
    "(each activated expert once a batch) per second; GOP/s = 2 per multiply-add; limit = whether "
    "reading those bytes or computing those products takes longer at the measured limits; of limit "
    "= that longer time over the median time, then over the least. The peak that counts is that of "
    "the kernel's own "
    "instruction set (for \"best\", what `--cpu-isa auto` selects: the machine's), int8 where "
    "activations are int8, else bf16.";

absl::StatusOr<std::vector<int>> ParseNumbers(absl::string_view flag,
                                              const std::vector<std::string>& texts, int max) {
  std::vector<int> numbers;
  for (const std::string& text : texts) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 1 || value > max) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, "=", text, ": must be whole numbers from 1 to ", max));
    }
    numbers.push_back(value);
  }
  return numbers;
}

absl::StatusOr<std::vector<Method>> ParseMethods(const std::vector<std::string>& names) {
  std::vector<Method> methods;
  for (const std::string& name : names) {
    const std::optional<Method> method = ParseMethod(name);
    if (!method) {
      const auto append = [](std::string* out, Method known) {
        absl::StrAppend(out, MethodName(known));
      };
      return absl::InvalidArgumentError(absl::StrCat("--method=", name, ": must be of ",
                                                     absl::StrJoin(AllMethods(), ", ", append)));
    }
    methods.push_back(*method);
  }
  return methods;
}

absl::StatusOr<std::vector<LayerShape>> ParseShapes(const std::vector<std::string>& texts) {
  std::vector<LayerShape> shapes;
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, 'x');
    const auto numbers = ParseNumbers("shape", parts, 1 << 20);
    if (!numbers.ok() || numbers->size() != 4 || (*numbers)[3] > (*numbers)[0]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--shape=", text, ": must be EXPERTSxHIDDENxINTERMEDIATExTOP_K, e.g. 128x2048x768x8"));
    }
    shapes.push_back({(*numbers)[0], (*numbers)[1], (*numbers)[2], (*numbers)[3]});
  }
  return shapes;
}

absl::StatusOr<std::vector<RoutingKind>> ParseRoutings(const std::vector<std::string>& names) {
  std::vector<RoutingKind> kinds;
  for (const std::string& name : names) {
    if (name != "balanced" && name != "skewed") {
      return absl::InvalidArgumentError(
          absl::StrCat("--routing=", name, ": must be of balanced, skewed"));
    }
    kinds.push_back(name == "balanced" ? RoutingKind::kBalanced : RoutingKind::kSkewed);
  }
  return kinds;
}

// Those of the kernel table, in its order, and "best".
std::vector<std::string> IsaNames() {
  std::vector<std::string> names = {"best"};
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (!absl::c_linear_search(names, entry.isa)) names.push_back(entry.isa);
  }
  return names;
}

absl::Status CheckIsas(const std::vector<std::string>& wanted) {
  const std::vector<std::string> known = IsaNames();
  for (const std::string& isa : wanted) {
    if (absl::c_linear_search(known, isa)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--isa=", isa, ": must be of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

constexpr int kMaxThreads = 4096;
constexpr int kMaxRows = 1 << 16;

}  // namespace

absl::Status FfnOptions::Validate() const {
  ATELIER_RETURN_IF_ERROR(ParseMethods(methods).status());
  ATELIER_RETURN_IF_ERROR(CheckIsas(isas));
  ATELIER_RETURN_IF_ERROR(ParseNumbers("rows", rows, kMaxRows).status());
  ATELIER_RETURN_IF_ERROR(ParseNumbers("threads", threads, kMaxThreads).status());
  ATELIER_RETURN_IF_ERROR(ParseShapes(shapes).status());
  return ParseRoutings(routings).status();
}

FfnPlan MakePlan(const FfnOptions& options, int max_threads) {
  FfnPlan plan;
  plan.methods = ParseMethods(options.methods).value();
  plan.isas = options.isas;
  plan.rows = ParseNumbers("rows", options.rows, kMaxRows).value();
  plan.shapes = ParseShapes(options.shapes).value();
  plan.routings = ParseRoutings(options.routings).value();
  plan.threads = ParseNumbers("threads", options.threads, kMaxThreads).value();
  if (plan.methods.empty()) plan.methods = AllMethods();
  if (plan.isas.empty() && options.quick) plan.isas = {"best"};
  if (plan.rows.empty()) {
    plan.rows = options.quick ? std::vector<int>{1, 16, 64, 1024}
                              : std::vector<int>{1, 2, 4, 8, 16, 32, 64, 256, 1024};
  }
  if (plan.shapes.empty()) {
    plan.shapes = {{128, 2048, 768, 8}, {256, 7168, 2048, 8}, {128, 4096, 1408, 8}};
    if (options.quick) plan.shapes.resize(1);
  }
  if (plan.routings.empty()) {
    plan.routings = {RoutingKind::kBalanced, RoutingKind::kSkewed};
    if (options.quick) plan.routings.resize(1);
  }
  if (options.kernel_only) plan.routings.resize(1);
  if (plan.threads.empty()) {
    plan.threads = {1};
    if (max_threads > 1) plan.threads.push_back(max_threads);
  }
  return plan;
}

FlagTable FfnFlags(FfnOptions* options) {
  return FlagTable(
      kUsage,
      {{"What to measure",
        {SwitchFlag("quick",
                    "The essential cells in less than 5 minutes: the first shape, 1, 16, 64 and "
                    "1024 tokens, balanced, the best ISA.",
                    &options->quick),
         ListFlag("method", "NAME,…", "Only these ways of keeping weights, e.g. BF16,INT8,Q4_K.",
                  &options->methods),
         ListFlag("isa", "NAME,…",
                  "Only these instruction sets, e.g. avx512vnni,best. Without it: all that this "
                  "CPU has but scalar (the oracle of the tests, hundreds of times slower), and "
                  "best.",
                  &options->isas),
         ListFlag("rows", "N,…", "Tokens in a batch. Default: 1, 2, 4, 8, 16, 32, 64, 256, 1024.",
                  &options->rows),
         ListFlag("shape", "ExHxIxK,…",
                  "Experts x hidden size x intermediate size x experts per token. Default: "
                  "128x2048x768x8, 256x7168x2048x8, 128x4096x1408x8.",
                  &options->shapes),
         ListFlag("routing", "KIND,…",
                  "balanced (rows per expert differ by at most one) or skewed (Zipf's law).",
                  &options->routings),
         ListFlag("threads", "N,…", "Default: 1 and all.", &options->threads),
         BytesFlag("memory",
                   "Bytes of weights to make for each method and shape; must be several times the "
                   "last-level cache. Where a layer does not fit, expert ids share weights. 0 = a "
                   "third of the available memory, at most 4 GiB.",
                   &options->memory_bytes),
         SwitchFlag("kernel-only",
                    "Time RunExpert instead of the executor: each thread computes experts of its "
                    "own one after the other; --rows is then rows per expert.",
                    &options->kernel_only)}},
       {"Output",
        {StringFlag("json", "FILE",
                    "Also write {\"machine\": …, \"results\": [{\"method\", \"isa\", \"threads\", "
                    "\"shape\", \"rows\", \"routing\", \"us\", \"gb_per_s\", \"gop_per_s\", "
                    "\"limit\", \"fraction_of_limit\"}]}.",
                    &options->json)}}});
}

}  // namespace atelier
