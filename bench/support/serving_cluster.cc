#include "bench/support/serving_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bench/support/far_link.h"
#include "libs/base/endpoint.h"
#include "libs/base/status_macros.h"
#include "libs/testing/child_process.h"
#include "tests/e2e/faults/resource_usage.h"

namespace atelier {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr absl::Duration kStartTimeout = absl::Seconds(120);
constexpr int kFarPort = 21000;

}  // namespace

std::string ServingCluster::File(const std::string& name) const {
  return absl::StrCat(spec_.run_dir, "/", spec_.name, "-", name);
}

faults::ServiceProcess& ServingCluster::Start(faults::ServiceSpec spec) {
  processes_.push_back(std::make_unique<faults::ServiceProcess>(std::move(spec)));
  processes_.back()->Start();
  return *processes_.back();
}

faults::ServiceSpec ServingCluster::WorkerSpec(const std::string& name) const {
  faults::ServiceSpec spec;
  spec.name = absl::StrCat(spec_.name, "-", name);
  spec.run_dir = spec_.run_dir;
  spec.command = {spec_.programs + "/expert-worker", "--model-path=" + spec_.model,
                  absl::StrCat("--threads=", spec_.threads), "--no-pin",
                  "--metrics-address=127.0.0.1:0"};
  return spec;
}

faults::ServiceProcess& ServingCluster::AddWorker(const std::string& name, Weights weights) {
  faults::ServiceSpec spec = WorkerSpec(name);
  if (weights == Weights::kInStore) spec.command.push_back("--store-dir=" + spec_.run_dir);
  spec.command.push_back("--shm-listen=" + File(name + ".shm"));
  spec.command.push_back("--shm-bytes-per-client=16MiB");
  spec.command.push_back("--listen=127.0.0.1:0,unix:" + File(name + ".sock"));
  return Start(std::move(spec));
}

std::string ServingCluster::ShmAddress(const std::string& worker) const {
  return "shm:" + File(worker + ".shm");
}

std::string ServingCluster::UnixAddress(const std::string& worker) const {
  return "unix:" + File(worker + ".sock");
}

std::string ServingCluster::TcpAddress(faults::ServiceProcess& worker) {
  const std::string listen = worker.Fact("listen");
  return std::vector<std::string>(absl::StrSplit(listen, ','))[0];
}

faults::ServiceProcess& ServingCluster::AddFarWorker(const std::string& name) {
  faults::ServiceSpec spec = WorkerSpec(name);
  spec.command.push_back("--listen=" + FarAddress());
  spec.command.push_back("--insecure");
  spec.network_namespace = spec_.far_namespace;
  return Start(std::move(spec));
}

std::string ServingCluster::FarAddress() { return absl::StrCat(FarLink::address(), ":", kFarPort); }

faults::ServiceSpec ServingCluster::FrontendSpec(const std::string& name,
                                                 std::vector<std::string> program) const {
  faults::ServiceSpec spec;
  spec.name = absl::StrCat(spec_.name, "-", name);
  spec.run_dir = spec_.run_dir;
  spec.command = std::move(program);
  spec.command[0] = absl::StrCat(spec_.programs, "/", spec.command[0]);
  spec.command.insert(spec.command.end(),
                      {"--model-path=" + spec_.model, "--port=0", "--metrics-address=127.0.0.1:0",
                       absl::StrCat("--threads=", spec_.threads), "--kv-cache-bytes=256MiB",
                       "--insecure"});  // the far host's worker
  return spec;
}

faults::ServiceProcess& ServingCluster::AddFrontend(const std::string& name,
                                                    const std::vector<std::string>& workers) {
  faults::ServiceSpec spec = FrontendSpec(name, {"gpu-frontend"});
  spec.command.push_back("--workers=" + absl::StrJoin(workers, ","));
  faults::ServiceProcess& process = Start(std::move(spec));
  frontends_.push_back({&process, workers});
  return process;
}

faults::ServiceProcess& ServingCluster::AddLocalFrontend(const std::string& name,
                                                         const std::string& where,
                                                         const std::string& worker) {
  faults::ServiceSpec spec = FrontendSpec(name, {"bench_local_frontend", where});
  spec.command.push_back("--workers=" + worker);
  return Start(std::move(spec));
}

std::string ServingCluster::Missing() {
  for (const auto& process : processes_) {
    if (!process->Ready()) return process->name() + " does not serve";
  }
  for (const Frontend& frontend : frontends_) {
    const std::string page = MetricsPage(*frontend.process);
    for (const std::string& worker : frontend.workers) {
      const std::string gauge =
          absl::StrCat("atelier_frontend_worker_connected{worker=\"", worker, "\"}");
      if (faults::MetricValue(page, gauge) != 1) {
        return absl::StrCat(frontend.process->name(), " is not connected to ", worker);
      }
    }
  }
  return "";
}

absl::Status ServingCluster::AwaitServing() {
  const absl::Time give_up = absl::Now() + kStartTimeout;
  while (true) {
    for (const auto& process : processes_) ATELIER_RETURN_IF_ERROR(process->CheckAlive());
    const std::string missing = Missing();
    if (missing.empty()) return absl::OkStatus();
    if (absl::Now() > give_up) {
      return absl::DeadlineExceededError(
          absl::StrCat(missing, " after ", absl::FormatDuration(kStartTimeout)));
    }
    absl::SleepFor(kPoll);
  }
}

std::string ListenAddress(faults::ServiceProcess& process) { return process.Fact("listen"); }

std::string MetricsPage(faults::ServiceProcess& process) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(process.Fact("metrics"));
  return endpoint.ok() ? testing::HttpGet(endpoint->port, "/metrics") : std::string();
}

}  // namespace atelier
