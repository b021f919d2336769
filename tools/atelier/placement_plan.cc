#include "tools/atelier/placement_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/checkpoint.h"
#include "services/expert-worker/choose_method.h"
#include "services/expert-worker/shard_plan.h"

namespace atelier {
namespace {

// What does not change with the units.
struct PlanInput {
  const ModelConfig& config;
  const PlanOptions& options;
  LayerMethods methods;
  std::vector<int> layers;                 // with experts
  std::vector<std::vector<double>> rates;  // [position in layers][expert]: ActivationRates
};

std::vector<PlacementSite> SitesOf(const std::vector<PlacedWorker>& workers) {
  std::vector<PlacementSite> sites;
  for (const PlacedWorker& worker : workers) {
    sites.push_back({worker.name, worker.host, worker.numa_node, worker.memory_bytes});
  }
  return sites;
}

PlacementProblem ProblemOf(const PlanInput& input) {
  PlacementProblem problem;
  problem.sites = SitesOf(input.options.workers);
  problem.copies = input.options.copies;
  problem.extra_copies = input.options.extra_copies;
  problem.apart = input.options.apart;
  problem.tolerance = input.options.tolerance;
  return problem;
}

// The bytes of each unit are the workers' own count.
absl::StatusOr<PlacementProblem> ProblemOf(const PlanInput& input, const PlacementUnits& units) {
  PlacementProblem problem = ProblemOf(input);
  const absl::StatusOr<std::vector<ShardPlan>> plans =
      PlanShards(input.config, units, input.methods);
  ATELIER_RETURN_IF_ERROR(NameFlags(plans.status(), {{"slice ", "--slices: slice "}}));
  for (size_t l = 0; l < input.layers.size(); ++l) {
    std::vector<PlacementUnit>& layer = problem.layers.emplace_back();
    for (const ShardPlan& plan : *plans) {
      double load = 0;
      for (int expert = plan.spec.expert_begin; expert < plan.spec.expert_end; ++expert) {
        load += input.rates[l][static_cast<size_t>(expert)];
      }
      const int64_t bytes = plan.layer_bytes[l];
      layer.push_back({load * static_cast<double>(bytes) / plan.num_experts(), bytes});
    }
  }
  if (input.options.current.has_value()) {
    problem.current = HoldersOf(*input.options.current, units, input.layers, input.options.workers);
  }
  return problem;
}

struct Solution {
  PlacementUnits units;
  PlacementProblem problem;
  PlacementPlan plan;
  PlacementQuality quality;
};

absl::StatusOr<Solution> Solve(const PlanInput& input, PlacementUnits units) {
  Solution solution;
  ATELIER_ASSIGN_OR_RETURN(solution.problem, ProblemOf(input, units));
  ATELIER_ASSIGN_OR_RETURN(solution.plan, PlanPlacement(solution.problem));
  solution.units = std::move(units);
  solution.quality = MeasurePlacement(solution.problem, solution.plan.holders);
  return solution;
}

// Numbers of runs worth a try: all small ones, as each costs a sum per row; then ever finer.
std::vector<int> BlockCounts(int num_experts, int num_workers) {
  std::vector<int> counts;
  const int small = std::min(num_experts, 2 * num_workers);
  for (int count = 1; count <= small; ++count) counts.push_back(count);
  for (int count = 2 * small; count < num_experts; count *= 2) counts.push_back(count);
  if (small < num_experts) counts.push_back(num_experts);
  return counts;
}

// The coarsest that balances well, else the best.
absl::StatusOr<Solution> SolveByFewBlocks(const PlanInput& input) {
  const auto workers = static_cast<int>(input.options.workers.size());
  const int experts = input.config.moe.num_experts;
  absl::StatusOr<Solution> best = absl::UnknownError("nothing tried");
  for (const int blocks : BlockCounts(experts, workers)) {
    absl::StatusOr<Solution> solution =
        Solve(input, EvenUnits(experts, blocks, input.options.slices));
    // Finer parts may fit where coarse ones do not.
    const bool better = !best.ok() || (solution.ok() && solution->quality.balance.worst >
                                                            best->quality.balance.worst);
    if (better) best = std::move(solution);
    if (best.ok() && best->quality.balance.worst >= kBalanced) break;
    if (!best.ok() && best.status().code() != absl::StatusCode::kResourceExhausted) break;
  }
  return best;
}

absl::StatusOr<Solution> SolveFromCurrent(const PlanInput& input) {
  const PlanOptions& options = input.options;
  const PlacementFile& current = *options.current;
  if (current.num_experts != input.config.moe.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("--current: is of a model with ",
                                                   current.num_experts, " experts, not ",
                                                   input.config.moe.num_experts));
  }
  absl::StatusOr<PlacementUnits> units = UnitsOf(current);
  if (!units.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--current: ", units.status().message()));
  }
  const bool asks_for_others = options.blocks > 0 || options.slices > 1;
  if (asks_for_others &&
      EvenUnits(current.num_experts, std::max(options.blocks, 1), options.slices) != *units) {
    return absl::InvalidArgumentError(
        "--current: its parts are others than --blocks and --slices ask for, and would change the "
        "bits of results: leave them out, or plan without --current");
  }
  return Solve(input, *std::move(units));
}

absl::StatusOr<Solution> Solve(const PlanInput& input) {
  const PlanOptions& options = input.options;
  if (options.current.has_value()) return SolveFromCurrent(input);
  if (options.blocks == 0) return SolveByFewBlocks(input);
  const int experts = input.config.moe.num_experts;
  if (options.blocks > experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--blocks=", options.blocks, ": a layer has ", experts, " experts"));
  }
  return Solve(input, EvenUnits(experts, options.blocks, options.slices));
}

// Workers by host; EPLB knows nodes only if all have as many devices.
int EqualHosts(const std::vector<PlacedWorker>& workers) {
  std::map<std::string, size_t> counts;
  for (const PlacedWorker& worker : workers) ++counts[worker.host];
  for (const auto& [host, count] : counts) {
    if (count * counts.size() != workers.size()) return 1;
  }
  return static_cast<int>(counts.size());
}

// Slots of a layer for as many copies as the plan has, the same number on every worker.
int SlotsOf(const Solution& solution, int num_experts, int num_workers) {
  int64_t copies = 0;
  int64_t units = 0;
  for (const LayerHolders& layer : solution.plan.holders) {
    units += static_cast<int64_t>(layer.size());
    for (const std::vector<int>& held : layer) copies += static_cast<int64_t>(held.size());
  }
  const auto slots = static_cast<int>(CeilDiv(copies * num_experts, units));
  return RoundUp(slots, num_workers);
}

absl::StatusOr<EplbComparison> CompareWithEplb(const PlanInput& input, const Solution& solution) {
  const auto workers = static_cast<int>(input.options.workers.size());
  const int experts = input.config.moe.num_experts;
  EplbComparison comparison;
  comparison.slots = SlotsOf(solution, experts, workers);
  const EplbShape shape{comparison.slots, input.config.moe.num_groups,
                        EqualHosts(input.options.workers), workers};
  ATELIER_ASSIGN_OR_RETURN(const EplbPlan plan, BalanceByEplb(input.rates, shape));
  PlacementProblem problem;
  problem.sites = solution.problem.sites;
  for (const std::vector<double>& rates : input.rates) {
    std::vector<PlacementUnit>& layer = problem.layers.emplace_back();
    for (const double rate : rates) layer.push_back({rate, 1});
  }
  const PlacementQuality quality = MeasurePlacement(problem, HoldersOf(plan, shape));
  comparison.balance = quality.balance;
  comparison.losses = quality.losses;
  comparison.wasted_copies = WastedCopies(plan, shape);
  return comparison;
}

PlacementFile FileOf(const Checkpoint& checkpoint, const PlanInput& input,
                     const Solution& solution) {
  PlacementFile file;
  file.model_digest = checkpoint.digest();
  file.num_experts = input.config.moe.num_experts;
  file.workers = input.options.workers;
  std::vector<std::vector<ShardSpec>> shards =
      ShardsOf(solution.plan.holders, solution.units, input.layers, file.workers.size());
  for (size_t w = 0; w < shards.size(); ++w) file.workers[w].shards = std::move(shards[w]);
  return file;
}

absl::StatusOr<PlanInput> InputOf(const Checkpoint& checkpoint, const PlanOptions& options) {
  ATELIER_RETURN_IF_ERROR(VerifyTensors(checkpoint, Role::kWorker));
  absl::StatusOr<LayerMethods> methods = ChooseMethods(checkpoint, options.method);
  ATELIER_RETURN_IF_ERROR(NameFlags(methods.status(), {{"method=", "--method="}}));
  PlanInput input{checkpoint.config(), options, *std::move(methods), {}, {}};
  for (int layer = 0; layer < input.config.num_layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    if (!input.config.is_moe_layer[at]) continue;
    input.layers.push_back(layer);
    const std::vector<double> counts =
        options.loads.empty() ? std::vector<double>() : options.loads[at];
    input.rates.push_back(ActivationRates(counts, input.config.moe, options.batch));
  }
  return input;
}

}  // namespace

absl::StatusOr<PlannedPlacement> PlanModel(const Checkpoint& checkpoint,
                                           const PlanOptions& options) {
  ATELIER_ASSIGN_OR_RETURN(const PlanInput input, InputOf(checkpoint, options));
  ATELIER_ASSIGN_OR_RETURN(Solution solution, Solve(input));
  PlannedPlacement planned;
  planned.file = FileOf(checkpoint, input, solution);
  planned.methods = MethodNames(input.config, input.methods);
  planned.layers = input.layers;
  ATELIER_ASSIGN_OR_RETURN(planned.eplb, CompareWithEplb(input, solution));
  for (size_t l = 0; l < solution.problem.layers.size(); ++l) {
    for (size_t unit = 0; unit < solution.units.size(); ++unit) {
      const int64_t bytes = solution.problem.layers[l][unit].bytes;
      planned.once_bytes += bytes;
      planned.all_bytes += bytes * static_cast<int64_t>(solution.plan.holders[l][unit].size());
    }
  }
  planned.units = std::move(solution.units);
  planned.plan = std::move(solution.plan);
  planned.quality = std::move(solution.quality);
  return planned;
}

}  // namespace atelier
