#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/support/samples.h"
#include "bench/support/serving_experiments.h"
#include "libs/base/status_macros.h"
#include "tests/e2e/faults/resource_usage.h"

namespace atelier {
namespace {

constexpr char kExperiment[] = "frontends";
constexpr int kStreams = 4;  // together, however many frontends share them

struct Spread {
  size_t frontends;
  std::vector<double> rates = {};    // tokens/s, by round
  std::vector<double> batches = {};  // rows that the worker computed at once, on average
};

// Counters of the worker since it started.
struct Batches {
  double count, rows;
};

Batches CountBatches(faults::ServiceProcess& worker) {
  const std::string page = MetricsPage(worker);
  return {faults::MetricSum(page, "atelier_worker_batch_tokens_count"),
          faults::MetricSum(page, "atelier_worker_batch_tokens_sum")};
}

absl::Status Measure(const ServingSetup& setup, faults::ServiceProcess& worker,
                     const std::vector<std::string>& frontends, Spread& spread) {
  const Batches before = CountBatches(worker);
  ATELIER_ASSIGN_OR_RETURN(
      const Speed speed,
      MeasureSpeed(setup, {frontends.begin(), frontends.begin() + spread.frontends}, kStreams));
  const Batches after = CountBatches(worker);
  spread.rates.push_back(speed.tokens_per_second);
  spread.batches.push_back((after.rows - before.rows) / (after.count - before.count));
  return absl::OkStatus();
}

void Report(const ServingSetup& setup, const std::vector<Spread>& spreads) {
  for (const Spread& spread : spreads) {
    const std::string variant =
        absl::StrCat(spread.frontends, " of ", kStreams / spread.frontends, " streams");
    setup.report.Add({kExperiment, variant, "all streams", "tokens/s", spread.rates});
    setup.report.Add(
        {kExperiment, variant, "rows of a batch at the worker", "rows", spread.batches});
  }
  for (const Spread& spread : spreads) {
    if (spread.frontends == 1) continue;
    setup.report.Add({"T19",
                      absl::StrCat(spread.frontends, " frontends against one, ", kStreams,
                                   " streams, ", spread.frontends + 1, " processes on ",
                                   std::thread::hardware_concurrency(), " CPUs"),
                      100 * Median(Ratios(spread.rates, spreads[0].rates)), 90, true, "%"});
  }
}

}  // namespace

absl::Status MeasureFrontends(const ServingSetup& setup) {
  ServingCluster cluster(setup.Named(kExperiment));
  faults::ServiceProcess& worker = cluster.AddWorker("worker", ServingCluster::Weights::kInMemory);
  std::vector<faults::ServiceProcess*> processes;
  for (int i = 0; i < kStreams; ++i) {
    processes.push_back(
        &cluster.AddFrontend(absl::StrCat("frontend-", i), {cluster.ShmAddress("worker")}));
  }
  ATELIER_RETURN_IF_ERROR(cluster.AwaitServing());
  std::vector<std::string> frontends;
  for (faults::ServiceProcess* process : processes) frontends.push_back(ListenAddress(*process));
  std::vector<Spread> spreads = {{1}, {2}, {4}};
  for (int round = 0; round < setup.rounds; ++round) {
    for (Spread& spread : spreads) {
      ATELIER_RETURN_IF_ERROR(Measure(setup, worker, frontends, spread));
    }
  }
  Report(setup, spreads);
  return absl::OkStatus();
}

}  // namespace atelier
