#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/support/samples.h"
#include "bench/support/serving_experiments.h"
#include "libs/base/status_macros.h"
#include "tests/e2e/faults/stream_client.h"

namespace atelier {
namespace {

constexpr char kExperiment[] = "ways";
constexpr int kManyStreams = 8;

// A frontend and how it reaches its experts.
struct Way {
  std::string name;
  faults::ServiceProcess* frontend;
  std::vector<double> rates = {};    // tokens/s, by round
  std::vector<double> periods = {};  // ms from token to token, the median of each round
};

faults::Sequence AskOnce(const Way& way, const faults::StreamRequest& request) {
  return faults::StreamClient::Create(ListenAddress(*way.frontend))
      ->Generate(request, "bench-once", [] { return faults::StreamStep::kReadOn; });
}

// Speeds of different answers could not be compared.
absl::Status CheckSameAnswers(const std::vector<Way>& ways, const faults::StreamRequest& request) {
  const faults::Sequence expected = AskOnce(ways[0], request);
  ATELIER_RETURN_IF_ERROR(expected.status);
  for (const Way& way : ways) {
    const faults::Sequence seen = AskOnce(way, request);
    ATELIER_RETURN_IF_ERROR(seen.status);
    if (seen.tokens == expected.tokens && seen.logprobs == expected.logprobs) continue;
    return absl::InternalError(
        absl::StrCat("the answer of \"", way.name, "\" is not that of \"", ways[0].name, "\""));
  }
  return absl::OkStatus();
}

class WaysExperiment {
 public:
  explicit WaysExperiment(const ServingSetup& setup)
      : setup_(setup), cluster_(setup.Named(kExperiment)) {}

  absl::Status Run() {
    ATELIER_RETURN_IF_ERROR(Start());
    ATELIER_RETURN_IF_ERROR(CheckSameAnswers(ways_, BenchRequests(setup_)[0]));
    for (int round = 0; round < setup_.rounds; ++round) {
      for (Way& way : ways_) ATELIER_RETURN_IF_ERROR(Measure(way));
      ATELIER_RETURN_IF_ERROR(MeasureManyStreams());
    }
    Report();
    return absl::OkStatus();
  }

 private:
  const Way& local() const { return ways_[0]; }
  const Way& shm() const { return ways_[1]; }
  const Way& bare() const { return ways_[2]; }

  absl::Status Start() {
    faults::ServiceProcess& worker =
        cluster_.AddWorker("worker", ServingCluster::Weights::kInMemory);
    if (setup_.far != nullptr) cluster_.AddFarWorker("far-worker");
    ATELIER_RETURN_IF_ERROR(cluster_.AwaitServing());
    const std::string shm = cluster_.ShmAddress("worker");
    ways_.push_back({"in process", &cluster_.AddLocalFrontend("local", "in-process", shm)});
    AddWay("split, shm", "shm", shm);
    ways_.push_back(
        {"split, shm, bare connection", &cluster_.AddLocalFrontend("bare", "connection", shm)});
    AddWay("split, gRPC, Unix socket", "unix", cluster_.UnixAddress("worker"));
    AddWay("split, gRPC, TCP", "tcp", ServingCluster::TcpAddress(worker));
    if (setup_.far != nullptr) {
      AddWay("split, gRPC, TCP, 0.2 ms", "far", ServingCluster::FarAddress());
    } else {
      setup_.report.Skip("ways: over a link that delays by 0.2 ms", setup_.no_far);
    }
    return cluster_.AwaitServing();
  }

  void AddWay(const std::string& name, const std::string& process, const std::string& worker) {
    ways_.push_back({name, &cluster_.AddFrontend(process, {worker})});
  }

  absl::Status Measure(Way& way) {
    ATELIER_ASSIGN_OR_RETURN(const Speed speed,
                             MeasureSpeed(setup_, {ListenAddress(*way.frontend)}, 1));
    way.rates.push_back(speed.tokens_per_second);
    way.periods.push_back(Median(speed.gaps) * 1e3);
    return absl::OkStatus();
  }

  absl::Status MeasureManyStreams() {
    ATELIER_ASSIGN_OR_RETURN(Speed speed,
                             MeasureSpeed(setup_, {ListenAddress(*shm().frontend)}, kManyStreams));
    std::sort(speed.gaps.begin(), speed.gaps.end());
    many_rates_.push_back(speed.tokens_per_second);
    many_medians_.push_back(Median(speed.gaps) * 1e3);
    many_p99s_.push_back(speed.gaps[(speed.gaps.size() - 1) * 99 / 100] * 1e3);
    return absl::OkStatus();
  }

  void Report() {
    for (const Way& way : ways_) {
      setup_.report.Add({kExperiment, way.name, "one stream", "tokens/s", way.rates});
      setup_.report.Add({kExperiment, way.name, "token to token", "ms", way.periods});
    }
    const std::string many = absl::StrCat("split, shm, ", kManyStreams, " streams");
    setup_.report.Add({kExperiment, many, "all streams", "tokens/s", many_rates_});
    setup_.report.Add({kExperiment, many, "token to token, median", "ms", many_medians_});
    setup_.report.Add({kExperiment, many, "token to token, p99", "ms", many_p99s_});
    for (size_t i = 1; i < ways_.size(); ++i) {
      if (&ways_[i] == &bare()) continue;
      const double limit = i == 1 ? 98 : setup_.far != nullptr && i + 1 == ways_.size() ? 85 : 95;
      AddTarget("T6", ways_[i].name + " against in process", Percent(ways_[i].rates, local().rates),
                limit, true);
    }
    const double added = Median(shm().periods) - Median(local().periods);
    setup_.report.Add({kExperiment,
                       "split, shm",
                       "added for each MoE layer",
                       "us",
                       {added * 1e3 / setup_.num_moe_layers}});
    AddTarget("T7", "what hops over shm add to a token's time", 100 * added / Median(shm().periods),
              2, false);
    AddTarget("T13", "what the care for failures costs over shm",
              100 - Percent(shm().rates, bare().rates), 1, false);
    setup_.report.Add({"T18", absl::StrCat("p99 of token to token at ", kManyStreams, " streams"),
                       Median(Ratios(many_p99s_, many_medians_)), 2.5, false, "medians"});
  }

  static double Percent(const std::vector<double>& a, const std::vector<double>& b) {
    return 100 * Median(Ratios(a, b));
  }
  void AddTarget(const char* id, std::string what, double value, double limit, bool at_least) {
    setup_.report.Add({id, std::move(what), value, limit, at_least, "%"});
  }

  const ServingSetup& setup_;
  ServingCluster cluster_;
  std::vector<Way> ways_;
  std::vector<double> many_rates_, many_medians_, many_p99s_;
};

}  // namespace

absl::Status MeasureWays(const ServingSetup& setup) { return WaysExperiment(setup).Run(); }

}  // namespace atelier
