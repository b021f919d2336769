#include <signal.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/support/samples.h"
#include "bench/support/serving_experiments.h"
#include "libs/base/status_macros.h"
#include "tests/e2e/faults/resource_usage.h"

namespace atelier {
namespace {

constexpr char kExperiment[] = "loss";
constexpr char kCallSeconds[] = "atelier_frontend_worker_call_seconds";
constexpr int kReplicas = 2;
// Right after a loss or a return; what follows is taken for steady.
constexpr double kUnsettled = 0.5;
// Of tokens in this many seconds a rate is told, and at this share of it a rate is reached.
constexpr double kRateSpan = 0.25;
constexpr double kFullRate = 0.95;
constexpr absl::Duration kReturnTimeout = absl::Seconds(30);

// One round: seconds of the steady clock, and of all calls before the kill how many were hedges.
struct Timeline {
  double begin, killed, restarted, serves, takes_calls, frozen, thawed, end;
  double hedges_percent;
};

// The values of all rounds, in the order in which they were first added.
class Series {
 public:
  void Add(const std::string& metric, const std::string& unit, double value) {
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const auto& f) { return f.metric == metric; });
    if (found != all_.end()) {
      found->rounds.push_back(value);
      return;
    }
    all_.push_back({kExperiment, "", metric, unit, {value}});
  }
  const std::vector<double>& Of(const std::string& metric) const {
    return std::find_if(all_.begin(), all_.end(), [&](const auto& f) { return f.metric == metric; })
        ->rounds;
  }
  void Report(ServingReport& report, const std::string& variant) {
    for (ServingReport::Figure& figure : all_) {
      figure.variant = variant;
      report.Add(figure);
    }
  }

 private:
  std::vector<ServingReport::Figure> all_;
};

class LossExperiment {
 public:
  explicit LossExperiment(const ServingSetup& setup)
      : setup_(setup), cluster_(setup.Named(kExperiment)) {}

  absl::Status Start() {
    std::vector<std::string> addresses;
    for (int i = 0; i < kReplicas; ++i) {
      const std::string name = absl::StrCat("worker-", i);
      worker_ = &cluster_.AddWorker(name, ServingCluster::Weights::kInStore);
      // The first one packs, the others find the files.
      ATELIER_RETURN_IF_ERROR(cluster_.AwaitServing());
      addresses.push_back(cluster_.ShmAddress(name));
    }
    frontend_ = &cluster_.AddFrontend("frontend", addresses);
    calls_metric_ = absl::StrCat(kCallSeconds, "_count{worker=\"", addresses.back(), "\"}");
    return cluster_.AwaitServing();
  }

  absl::Status Measure(int streams, bool saturated) {
    Series series;
    for (int round = 0; round < setup_.rounds; ++round) {
      ATELIER_RETURN_IF_ERROR(MeasureRound(streams, series));
    }
    const std::string variant = absl::StrCat(streams, streams == 1 ? " stream" : " streams",
                                             ", 1 of ", kReplicas, " killed");
    series.Report(setup_.report, variant);
    Judge(series, variant, saturated);
    return absl::OkStatus();
  }

 private:
  absl::Status MeasureRound(int streams, Series& series) {
    TokenLoad load({{ListenAddress(*frontend_)}, streams, BenchRequests(setup_)});
    ATELIER_RETURN_IF_ERROR(load.AwaitDecoding());
    Timeline t{};
    const CallCounts quiet = CountCalls();
    t.begin = SteadyNow();
    Sleep(setup_.window);
    t.killed = SteadyNow();
    t.hedges_percent = HedgesPercent(quiet, CountCalls());
    worker_->Kill();
    Sleep(kUnsettled + setup_.window);
    const double calls = CountCalls().of_worker;
    t.restarted = SteadyNow();
    worker_->Start();
    ATELIER_RETURN_IF_ERROR(AwaitCall(calls, [&] {
      if (t.serves == 0 && worker_->Ready()) t.serves = SteadyNow();
    }));
    t.takes_calls = SteadyNow();
    // Calls can come before the ready file was seen.
    if (t.serves == 0) t.serves = t.takes_calls;
    Sleep(kUnsettled + setup_.window);
    ATELIER_RETURN_IF_ERROR(Freeze(t));
    // Whoever loses a stream has nothing to be measured.
    ATELIER_RETURN_IF_ERROR(load.failure());
    return Evaluate(load.Arrivals(), t, series);
  }

  // For so long that it is noticed; until calls come again.
  absl::Status Freeze(Timeline& t) {
    t.frozen = SteadyNow();
    worker_->Signal(SIGSTOP);
    Sleep(setup_.window);
    const double calls = CountCalls().of_worker;
    t.thawed = SteadyNow();
    worker_->Signal(SIGCONT);
    const absl::Status status = AwaitCall(calls, [] {});
    t.end = SteadyNow();
    return status;
  }

  // Until the worker has answered more than so many.
  absl::Status AwaitCall(double calls, const std::function<void()>& meanwhile) {
    const absl::Time give_up = absl::Now() + kReturnTimeout;
    while (CountCalls().of_worker <= calls) {
      meanwhile();
      ATELIER_RETURN_IF_ERROR(worker_->CheckAlive());
      if (absl::Now() > give_up) {
        return absl::DeadlineExceededError(absl::StrCat(worker_->name(),
                                                        " is back but answered no call within ",
                                                        absl::FormatDuration(kReturnTimeout)));
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return absl::OkStatus();
  }

  absl::Status Evaluate(const std::vector<TokenArrival>& arrivals, const Timeline& t,
                        Series& series) {
    const double settled = t.killed + kUnsettled, returned = t.takes_calls + kUnsettled;
    const double before = TokenRate(arrivals, t.begin, t.killed);
    const double after = TokenRate(arrivals, settled, t.restarted);
    series.Add("before", "tokens/s", before);
    series.Add("in the half second of the loss", "tokens/s",
               TokenRate(arrivals, t.killed, settled));
    series.Add("after", "tokens/s", after);
    series.Add("with the replica back", "tokens/s", TokenRate(arrivals, returned, t.frozen));
    const auto add_ms = [&](const std::string& metric, double seconds) {
      series.Add(metric, "ms", seconds * 1e3);
    };
    const std::vector<double> usual = GapsBetween(arrivals, t.begin, t.killed);
    const auto longest = LongestGap(arrivals, t.begin, t.killed);
    const auto at_loss = LongestGap(arrivals, t.killed, settled);
    const auto at_return = LongestGap(arrivals, t.restarted, returned);
    const auto first = FirstTokenAfter(arrivals, t.killed);
    if (!longest.has_value() || !at_loss.has_value() || !at_return.has_value()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no two tokens came within ", kUnsettled, " s of the loss or the return"));
    }
    add_ms("token to token before, median", Median(usual));
    add_ms("token to token before, longest", longest->gap);
    add_ms("loss to first token", first.value());
    add_ms("token to token at loss, longest", at_loss->gap);
    // Its wait is behind it then; before it, tokens come that were under way.
    add_ms("loss to full rate",
           at_loss->time - t.killed + TimeToRate(arrivals, at_loss->time, t.restarted, after));
    add_ms("restart to serving", t.serves - t.restarted);
    add_ms("restart to first call", t.takes_calls - t.restarted);
    add_ms("token to token at return, longest", at_return->gap);
    add_ms("restart to full rate", TimeToRate(arrivals, t.restarted, t.frozen, before));
    const auto in_frost = LongestGap(arrivals, t.frozen, t.end);
    add_ms("token to token while frozen, longest",
           in_frost.has_value() ? in_frost->gap : t.end - t.frozen);
    add_ms("thaw to first call", t.end - t.thawed);
    series.Add("hedges before", "% calls", t.hedges_percent);
    return absl::OkStatus();
  }

  // Where it is not reached: all the time that was watched, which is less than it would take.
  static double TimeToRate(const std::vector<TokenArrival>& arrivals, double from, double end,
                           double rate) {
    return TimeUntilRate(arrivals, from, end, kFullRate * rate, kRateSpan).value_or(end - from);
  }

  void Judge(const Series& series, const std::string& variant, bool saturated) {
    const double drop = 100 - 100 * Median(Ratios(series.Of("after"), series.Of("before")));
    const double limit = saturated ? 100.0 / kReplicas + 2 : 2;
    ServingReport& report = setup_.report;
    report.Add({"T11", absl::StrCat(variant, ": drop of throughput"), drop, limit, false, "%"});
    report.Add({"T9", absl::StrCat(variant, ": longest wait of all rounds beyond the usual one"),
                Stall(series, "token to token at loss, longest"), 100, false, "ms"});
    report.Add({"T10", absl::StrCat(variant, ": the same when it is frozen"),
                Stall(series, "token to token while frozen, longest"),
                3e3 * faults::HistogramQuantile(MetricsPage(*frontend_), kCallSeconds, 0.99) + 10,
                false, "ms"});
    report.Add({"T10", absl::StrCat(variant, ": hedges of calls, nothing being wrong"),
                Median(series.Of("hedges before")), 5, false, "%"});
    report.Add({"T12", absl::StrCat(variant, ": restart to first call"),
                Median(series.Of("restart to first call")), 1000, false, "ms"});
    if (!saturated) return;  // the rate is never gone
    report.Add({"T12", absl::StrCat(variant, ": restart to 95 % of the rate before"),
                Median(series.Of("restart to full rate")), 3000, false, "ms"});
  }

  static double Stall(const Series& series, const std::string& metric) {
    const std::vector<double>& stalls = series.Of(metric);
    return *std::max_element(stalls.begin(), stalls.end()) -
           Median(series.Of("token to token before, median"));
  }

  // Of the frontend, since it started.
  struct CallCounts {
    double all, hedges, of_worker;  // of_worker: answered by the one that is killed
  };
  CallCounts CountCalls() {
    const std::string page = MetricsPage(*frontend_);
    return {faults::MetricSum(page, absl::StrCat(kCallSeconds, "_count")),
            faults::MetricSum(page, "atelier_frontend_worker_hedges_total"),
            faults::MetricValue(page, calls_metric_)};
  }
  static double HedgesPercent(const CallCounts& from, const CallCounts& to) {
    return 100 * (to.hedges - from.hedges) / std::max(1.0, to.all - from.all);
  }

  static void Sleep(double seconds) { absl::SleepFor(absl::Seconds(seconds)); }

  const ServingSetup& setup_;
  ServingCluster cluster_;
  faults::ServiceProcess* worker_ = nullptr;  // the one that is killed
  faults::ServiceProcess* frontend_ = nullptr;
  std::string calls_metric_;
};

}  // namespace

absl::Status MeasureLoss(const ServingSetup& setup) {
  LossExperiment experiment(setup);
  ATELIER_RETURN_IF_ERROR(experiment.Start());
  ATELIER_RETURN_IF_ERROR(experiment.Measure(1, false));
  return experiment.Measure(8, true);
}

}  // namespace atelier
