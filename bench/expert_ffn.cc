#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/support/ffn_options.h"
#include "bench/support/ffn_result.h"
#include "bench/support/machine.h"
#include "bench/support/routed_batch.h"
#include "bench/support/samples.h"
#include "bench/support/synthetic_experts.h"
#include "libs/base/command_line.h"
#include "libs/base/status_macros.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/numa/cpu_name.h"
#include "libs/numa/node_arena.h"
#include "services/expert-worker/executor.h"

namespace atelier {
namespace {

constexpr size_t kReadBytes = size_t{1} << 30;
// Batches that take turns, so that the experts of one are out of the caches when they return.
constexpr int kNumBatches = 8;

// A row of the kernel table, or (no entry) what `auto` selects.
struct IsaChoice {
  std::string name;
  KernelTable table;
};

// Threads and what they can do at best.
struct Team {
  std::unique_ptr<NodeArena> arena;
  MachineLimits limits;
};

// What the cells of one method and shape share.
struct Bench {
  const SyntheticExperts& store;
  const LayerShape& shape;
  size_t expert_bytes;
};

FfnResult ResultOf(const Bench& bench, const IsaChoice& isa, const Team& team, int rows) {
  const Method method = bench.store.method();
  FfnResult result;
  result.method = std::string(MethodName(method));
  result.isa = isa.name;
  result.threads = team.limits.threads;
  result.rows = rows;
  result.arithmetic =
      ActivationFormOf(method) == ActivationForm::kBf16 ? Arithmetic::kBf16 : Arithmetic::kInt8;
  return result;
}

void SetTimes(const std::vector<double>& seconds, FfnResult& result) {
  result.us = Median(seconds) * 1e6;
  result.least_us = Least(seconds) * 1e6;
}

FfnResult MeasureForward(const Bench& bench, const IsaChoice& isa, const Team& team,
                         const std::vector<RoutedBatch>& batches, int rows) {
  FfnResult result = ResultOf(bench, isa, team, rows);
  result.shape = bench.shape.Name();
  const std::unique_ptr<Executor> executor = CreateExecutor(bench.store, isa.table, *team.arena);
  std::vector<float> sums(static_cast<size_t>(rows) * static_cast<size_t>(bench.shape.hidden));
  double activated = 0;
  for (const RoutedBatch& batch : batches) activated += batch.num_activated();
  SetTimes(TimeCalls({},
                     [&](int call) {
                       const size_t index = static_cast<size_t>(call) % batches.size();
                       executor->Forward(batches[index].View(call % bench.store.num_layers()),
                                         {sums.data()});
                     }),
           result);
  result.bytes =
      activated / static_cast<double>(batches.size()) * static_cast<double>(bench.expert_bytes);
  result.ops = 2.0 * bench.shape.weights() * rows * bench.shape.top_k;
  return result;
}

FfnResult MeasureKernel(const Bench& bench, const IsaChoice& isa, const Team& team, int rows) {
  FfnResult result = ResultOf(bench, isa, team, rows);
  const LayerShape one{1, bench.shape.hidden, bench.shape.inner, 1};
  result.shape = one.Name();
  result.routing = "balanced";
  const Method method = bench.store.method();
  const size_t num_rows = static_cast<size_t>(rows), hidden = static_cast<size_t>(one.hidden);
  const size_t stride = ActivationRowBytes(method, one.hidden);
  const std::vector<float> input(num_rows * hidden, 0.5f);
  AlignedBuffer<uint8_t> prepared;
  AlignedBuffer<float> scales;
  PrepareRows(method, input.data(), hidden, rows, one.hidden, prepared.Reserve(num_rows * stride),
              scales.Reserve(num_rows));
  const size_t width = (hidden + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const size_t threads = static_cast<size_t>(result.threads);
  std::vector<std::vector<float>> out(threads, std::vector<float>(num_rows * width));
  const ActivationRows view{prepared.data(), stride, scales.data(), rows};
  SetTimes(TimeCalls({},
                     [&](int call) {
                       team.arena->ParallelFor(result.threads, [&](int64_t thread) {
                         const size_t t = static_cast<size_t>(thread);
                         RunExpert(isa.table,
                                   bench.store.distinct(static_cast<size_t>(call) * threads + t),
                                   view, out[t].data(), width);
                       });
                     }),
           result);
  result.bytes = static_cast<double>(bench.expert_bytes * threads);
  result.ops = 2.0 * one.weights() * rows * result.threads;
  return result;
}

class Program {
 public:
  Program(const FfnOptions& options, const Topology& topology)
      : options_(options), plan_(MakePlan(options, topology.num_cpus())), topology_(topology) {}

  absl::Status Run() {
    ATELIER_RETURN_IF_ERROR(MeasureLimits());
    for (const LayerShape& shape : plan_.shapes) {
      PrintHeading(shape.Name());
      for (const Method method : plan_.methods) {
        ATELIER_RETURN_IF_ERROR(MeasureMethod(method, shape));
      }
    }
    return options_.json.empty() ? absl::OkStatus()
                                 : WriteJson(options_.json, AllLimits(), results_);
  }

 private:
  absl::Status MeasureLimits();
  absl::Status MeasureMethod(Method method, const LayerShape& shape);
  void MeasureTeam(const Bench& bench, const Team& team);
  void MeasureRouting(const Bench& bench, const Team& team, RoutingKind kind);
  std::vector<IsaChoice> IsasOf(Method method) const;
  size_t Budget() const;
  std::vector<MachineLimits> AllLimits() const {
    std::vector<MachineLimits> all;
    for (const Team& team : teams_) all.push_back(team.limits);
    return all;
  }
  void Add(const FfnResult& result, const Team& team) {
    results_.push_back(result);
    PrintResult(result, team.limits);
  }

  const FfnOptions& options_;
  const FfnPlan plan_;
  const Topology& topology_;
  const CpuFeatures features_ = CpuFeatures::Detect();
  const Logger logger_;
  std::vector<Team> teams_;
  std::vector<FfnResult> results_;
};

absl::Status Program::MeasureLimits() {
  std::printf("%s\n", CpuName().c_str());
  std::unique_ptr<NodeMemory> memory;
  for (const int threads : plan_.threads) {
    NodeArenaOptions options;
    options.num_threads = threads;
    Team team;
    ATELIER_ASSIGN_OR_RETURN(team.arena, NodeArena::Create(options, topology_, logger_));
    if (memory == nullptr) {
      ATELIER_ASSIGN_OR_RETURN(memory, team.arena->Allocate(kReadBytes));
      std::fill_n(memory->data(), kReadBytes, uint8_t{1});
    }
    team.limits = MeasureMachine(features_, *team.arena, *memory);
    PrintLimits(team.limits);
    teams_.push_back(std::move(team));
  }
  return absl::OkStatus();
}

size_t Program::Budget() const {
  if (options_.memory_bytes > 0) return static_cast<size_t>(options_.memory_bytes);
  return static_cast<size_t>(std::min(kMostWeightBytes, AvailableMemoryBytes() / 3));
}

std::vector<IsaChoice> Program::IsasOf(Method method) const {
  const auto wanted = [this](absl::string_view isa) {
    if (plan_.isas.empty()) return isa != "scalar";
    return std::find(plan_.isas.begin(), plan_.isas.end(), std::string(isa)) != plan_.isas.end();
  };
  std::vector<IsaChoice> choices;
  const KernelTable best = KernelTable::Select(features_, CpuIsa::kAuto).value();
  // A scalar kernel is selected only where nothing better was written yet.
  const bool only_scalar = absl::string_view(best.isa(method)) == "scalar";
  if (wanted("best") && (!only_scalar || wanted("scalar"))) choices.push_back({"best", best});
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (entry.method == method && entry.supported(features_) && wanted(entry.isa)) {
      choices.push_back({entry.isa, KernelTable::ForEntry(entry)});
    }
  }
  return choices;
}

absl::Status Program::MeasureMethod(Method method, const LayerShape& shape) {
  if (IsasOf(method).empty()) return absl::OkStatus();
  const absl::StatusOr<size_t> expert_bytes = PackedExpertBytes(method, shape);
  if (!expert_bytes.ok()) {
    std::printf("%-12s cannot hold this shape: %s\n", std::string(MethodName(method)).c_str(),
                std::string(expert_bytes.status().message()).c_str());
    return absl::OkStatus();
  }
  ATELIER_ASSIGN_OR_RETURN(const std::unique_ptr<SyntheticExperts> store,
                           SyntheticExperts::Create(method, shape, Budget(), *teams_.back().arena));
  const Bench bench{*store, shape, *expert_bytes};
  for (const Team& team : teams_) MeasureTeam(bench, team);
  return absl::OkStatus();
}

void Program::MeasureTeam(const Bench& bench, const Team& team) {
  if (!options_.kernel_only) {
    for (const RoutingKind kind : plan_.routings) MeasureRouting(bench, team, kind);
    return;
  }
  for (const int rows : plan_.rows) {
    for (const IsaChoice& isa : IsasOf(bench.store.method())) {
      Add(MeasureKernel(bench, isa, team, rows), team);
    }
  }
}

void Program::MeasureRouting(const Bench& bench, const Team& team, RoutingKind kind) {
  for (const int rows : plan_.rows) {
    std::vector<RoutedBatch> batches;
    for (uint32_t seed = 1; seed <= kNumBatches; ++seed) {
      batches.emplace_back(bench.shape, rows, kind, seed);
    }
    for (const IsaChoice& isa : IsasOf(bench.store.method())) {
      FfnResult result = MeasureForward(bench, isa, team, batches, rows);
      result.routing = std::string(RoutingName(kind));
      Add(result, team);
    }
  }
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::FfnOptions options;
  const atelier::FlagTable flags = atelier::FfnFlags(&options);
  if (const auto status = atelier::AnswerCommandLine("expert_ffn", flags, argc, argv,
                                                     [&] { return options.Validate(); })) {
    return *status;
  }
  const atelier::Topology topology = atelier::Topology::Detect();
  const absl::Status status = atelier::Program(options, topology).Run();
  if (status.ok()) return 0;
  std::cerr << "expert_ffn: " << status.message() << "\n";
  return 1;
}
