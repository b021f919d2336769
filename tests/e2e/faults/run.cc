#include "tests/e2e/faults/run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "tests/e2e/faults/cluster.h"
#include "tests/e2e/faults/nemesis.h"
#include "tests/e2e/faults/private_network.h"
#include "tests/e2e/faults/resource_usage.h"

namespace atelier::faults {
namespace {

constexpr int kNumRequests = 32;
constexpr uint32_t kVocabSize = 512;
// Ten layers of 16 experts: a token takes a few milliseconds, so that faults meet calls in flight.
constexpr char kModelPatch[] = R"({"num_hidden_layers": 10, "num_experts": 16,
                                   "num_experts_per_tok": 4})";
// What the allocator may keep after a burst, and the buffers of its threads.
constexpr int64_t kRssSlackBytes = int64_t{48} << 20;
// For each fault; the last line counts all.
constexpr int kFailuresShown = 5;
constexpr absl::Duration kQuietTimeout = absl::Seconds(15);
constexpr absl::Duration kQuietWindow = absl::Milliseconds(400);

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options) {}

  int Main() {
    PrepareNetwork();
    PrepareFiles();
    const absl::Status status = Attack();
    if (!status.ok()) Problem(status.ToString());
    Say(StallText());
    for (const std::string& problem : problems_) Say("PROBLEM " + problem);
    Tally tally = load_ == nullptr ? Tally() : load_->tally();
    tally.kills = nemesis_ == nullptr ? 0 : nemesis_->kills();
    tally.faults = num_faults_;
    Say(absl::StrCat("seed ", options_.seed, "; ", tally.ended,
                     " sequences ended early, as they might; ", problems_.size(), " problems"));
    const bool good = problems_.empty() && tally.lost == 0 && tally.changed == 0;
    if (!good) Say(absl::StrCat("logs: ", run_dir_, options_.run_dir.empty() ? " (removed)" : ""));
    Say(SummaryLine(tally));
    return good ? 0 : 1;
  }

 private:
  void PrepareNetwork() {
    const absl::Status isolated = IsolateNetwork();
    if (isolated.ok()) {
      auto far = FarHost::Create(static_cast<uint64_t>(options_.seed));
      if (far.ok()) {
        far_ = *std::move(far);
      } else {
        no_link_ = far.status().ToString();
      }
    } else {
      no_link_ = isolated.ToString();
    }
    shape_ = {options_.slices, options_.replicas, options_.frontends, false,
              options_.method != "int8"};
    shape_.link = far_ != nullptr && options_.replicas > 1;
    if (far_ != nullptr && !shape_.link) no_link_ = "it takes two replicas";
    isolated_ = isolated.ok();
  }

  void PrepareFiles() {
    run_dir_ = options_.run_dir.empty() ? temp_dir_.path() : options_.run_dir;
    std::filesystem::create_directories(run_dir_);
    model_ = options_.model;
    if (!model_.empty()) return;
    model_ = run_dir_ + "/model";
    testing::WriteSyntheticCheckpoint(
        model_, {.config_json = testing::TinyQwen3MoeConfig(kModelPatch), .seed = 1});
  }

  ClusterSpec Spec() const {
    ClusterSpec spec;
    spec.shape = shape_;
    spec.programs = options_.programs;
    spec.model = model_;
    spec.run_dir = run_dir_;
    spec.methods = options_.method == "mixed" ? std::vector<std::string>{"bf16", "int8"}
                                              : std::vector<std::string>{options_.method};
    // Below the ports that the kernel gives to clients; alone in the namespace, any will do.
    spec.base_port = isolated_ ? 21000 : 21000 + ::getpid() % 150 * 64;
    spec.far_namespace = far_ == nullptr ? -1 : far_->network_namespace();
    return spec;
  }

  std::vector<PlannedFault> Schedule() {
    ScheduleSpec spec;
    spec.seed = static_cast<uint64_t>(options_.seed);
    spec.kills = options_.kills;
    spec.shape = shape_;
    if (!options_.only.empty()) spec.only = FindFault(options_.only)->kind;
    for (const FaultInfo& fault : FaultMenu()) {
      if (spec.only.has_value() && *spec.only != fault.kind) continue;
      std::string why = Obstacle(fault, shape_);
      if (why.empty()) continue;
      if (fault.needs == Needs::kLink) absl::StrAppend(&why, " (", no_link_, ")");
      Say(absl::StrCat("SKIPPED ", fault.name, ": ", why));
    }
    return MakeSchedule(spec);
  }

  absl::Status Attack() {
    Say(absl::StrCat("seed=", options_.seed, " slices=", shape_.slices,
                     " replicas=", shape_.replicas, " frontends=", shape_.frontends,
                     " streams=", options_.clients * shape_.frontends, " method=", options_.method,
                     " second_host=", shape_.link ? "yes" : "no"));
    const std::vector<PlannedFault> schedule = Schedule();
    if (schedule.empty()) return absl::FailedPreconditionError("no fault is possible here");
    cluster_ = std::make_unique<Cluster>(Spec());
    ATELIER_RETURN_IF_ERROR(cluster_->Start());
    MakeLoad();
    ATELIER_RETURN_IF_ERROR(load_->LearnAnswers());
    ATELIER_RETURN_IF_ERROR(load_->LearnAnswers());
    for (ServiceProcess* process : cluster_->Processes()) {
      before_.push_back(ResourcesOf(process->pid()));
    }
    Say(absl::StrCat(kNumRequests, " requests answered without faults; ", schedule.size(),
                     " faults planned"));
    nemesis_ = std::make_unique<Nemesis>(*cluster_, *load_, *excuses_,
                                         far_ == nullptr ? nullptr : &far_->link());
    load_->Start();
    for (const PlannedFault& fault : schedule) ATELIER_RETURN_IF_ERROR(InjectOne(fault));
    load_->Stop();
    CheckGrowth();
    Say(FailoverText());
    return absl::OkStatus();
  }

  void MakeLoad() {
    excuses_ = std::make_unique<Excuses>(shape_.frontends);
    LoadSpec spec;
    spec.requests = MakeRequests(static_cast<uint64_t>(options_.seed), kNumRequests, kVocabSize);
    spec.frontends = shape_.frontends;
    spec.clients_per_frontend = options_.clients;
    spec.seed = static_cast<uint64_t>(options_.seed);
    spec.address = [cluster = cluster_.get()](int frontend) {
      return cluster->FrontendAddress(frontend);
    };
    spec.on_failure = [this](const std::string& what) {
      if (++failures_of_fault_ <= kFailuresShown) Say(what);
    };
    load_ = std::make_unique<Load>(std::move(spec), *excuses_);
  }

  // What streams wait for tokens anyway, for so long as a kill takes to heal, and right before it:
  // the machine may be busier at one time than at another.
  void MeasureQuiet(const PlannedFault& fault) {
    if (KillsOf(fault.kind, shape_) == 0 && num_faults_ > 0) return;
    load_->TakeLongestSilence();
    absl::SleepFor(kQuietWindow);
    stalls_.AddQuiet(load_->TakeLongestSilence());
  }

  absl::Status InjectOne(const PlannedFault& fault) {
    MeasureQuiet(fault);
    load_->TakeLongestSilence();
    failures_of_fault_ = 0;
    const absl::Time begin = absl::Now();
    const absl::Status status = nemesis_->Inject(fault);
    const absl::Duration silence = load_->TakeLongestSilence();
    ++num_faults_;
    stalls_.Add(fault.kind, silence);
    Say(absl::StrCat("#", num_faults_, " ", ToString(fault), ": healed after ",
                     absl::ToInt64Milliseconds(absl::Now() - begin - fault.after), " ms, silence ",
                     absl::ToInt64Milliseconds(silence), " ms"));
    return status;
  }

  // What the quiet end holds more than the quiet beginning.
  void CheckGrowth() {
    const std::vector<ServiceProcess*> processes = cluster_->Processes();
    for (size_t i = 0; i < processes.size(); ++i) {
      const absl::Time give_up = absl::Now() + kQuietTimeout;
      ResourceUsage now = ResourcesOf(processes[i]->pid());
      std::string growth = Growth(before_[i], now, kRssSlackBytes);
      while (!growth.empty() && absl::Now() < give_up) {
        absl::SleepFor(absl::Milliseconds(100));
        now = ResourcesOf(processes[i]->pid());
        growth = Growth(before_[i], now, kRssSlackBytes);
      }
      Say(absl::StrCat(processes[i]->name(), ": ", ToString(before_[i]), " -> ", ToString(now)));
      if (!growth.empty()) Problem(absl::StrCat(processes[i]->name(), ": ", growth));
    }
  }

  // The first frontend lives from the beginning to the end, so its counters know all.
  std::string FailoverText() {
    const std::string page = cluster_->FrontendMetrics(0);
    std::string text = "frontend-0:";
    for (const char* what :
         {"failovers", "hedges", "late_answers", "not_finite", "ejections", "reconnects"}) {
      const double sum = MetricSum(page, absl::StrCat("atelier_frontend_worker_", what, "_total"));
      absl::StrAppend(&text, " ", what, "=", static_cast<int64_t>(sum));
    }
    const double calls = MetricSum(page, "atelier_frontend_worker_call_seconds_count");
    return absl::StrCat(text, " of ", static_cast<int64_t>(calls), " answered calls");
  }

  std::string StallText() const { return num_faults_ == 0 ? "" : stalls_.ToText(); }
  void Problem(std::string what) { problems_.push_back(std::move(what)); }

  const Options& options_;
  const testing::TempDir temp_dir_;
  std::string run_dir_;
  std::string model_;
  bool isolated_ = false;
  std::string no_link_;  // why there is no second host
  std::unique_ptr<FarHost> far_;
  ClusterShape shape_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Excuses> excuses_;
  std::unique_ptr<Load> load_;
  std::unique_ptr<Nemesis> nemesis_;
  std::vector<ResourceUsage> before_;  // of cluster_->Processes()
  StallTable stalls_;
  int64_t num_faults_ = 0;
  std::atomic<int> failures_of_fault_{0};
  std::vector<std::string> problems_;
};

}  // namespace

int RunFaults(const Options& options) {
  const rlimit no_core_files{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core_files);
  Options resolved = options;
  if (resolved.programs.empty()) {
    resolved.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  }
  return Run(resolved).Main();
}

}  // namespace atelier::faults
