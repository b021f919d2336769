#include "tests/e2e/faults/cluster.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "libs/base/endpoint.h"
#include "libs/base/status_macros.h"
#include "libs/testing/child_process.h"
#include "tests/e2e/faults/private_network.h"
#include "tests/e2e/faults/resource_usage.h"

namespace atelier::faults {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr absl::Duration kStartTimeout = absl::Seconds(120);

std::string WorkerName(int slice, int replica) {
  return absl::StrCat("worker-", slice, "-", replica);
}

}  // namespace

Place PlaceOf(int replica, const ClusterShape& shape) {
  if (shape.link && replica == shape.replicas - 1) return Place::kFarHost;
  constexpr Place kNear[] = {Place::kSharedMemory, Place::kProxiedTcp, Place::kUnixSocket};
  return kNear[replica % 3];
}

Cluster::Cluster(ClusterSpec spec) : spec_(std::move(spec)) {
  const ClusterShape& shape = spec_.shape;
  std::filesystem::create_directories(File("store"));
  std::filesystem::create_directories(File("store-of-loner"));
  for (int slice = 0; slice < shape.slices; ++slice) {
    for (int replica = 0; replica < shape.replicas; ++replica) {
      workers_.push_back(std::make_unique<ServiceProcess>(WorkerSpec(slice, replica)));
    }
    if (proxied_replica() < 0) continue;
    const int port = WorkerPort(slice, proxied_replica());
    proxies_.push_back(std::make_unique<TcpProxy>(port + 1, port));
  }
  for (int i = 0; i < shape.frontends; ++i) {
    frontends_.push_back(std::make_unique<ServiceProcess>(FrontendSpec(i)));
  }
  frontend_addresses_.resize(static_cast<size_t>(shape.frontends));
}

int Cluster::proxied_replica() const {
  for (int replica = 0; replica < spec_.shape.replicas; ++replica) {
    if (PlaceOf(replica, spec_.shape) == Place::kProxiedTcp) return replica;
  }
  return -1;
}

int Cluster::WorkerPort(int slice, int replica) const {
  return spec_.base_port + 2 * (slice * spec_.shape.replicas + replica);
}

std::string Cluster::StoreDir(int slice, int replica) const {
  return slice == 0 && replica == kLoner ? File("store-of-loner") : File("store");
}

ServiceSpec Cluster::WorkerSpec(int slice, int replica) const {
  ServiceSpec spec;
  spec.name = WorkerName(slice, replica);
  spec.run_dir = spec_.run_dir;
  const std::string& method = spec_.methods[static_cast<size_t>(slice) % spec_.methods.size()];
  spec.command = {spec_.programs + "/expert-worker",
                  "--model-path=" + spec_.model,
                  absl::StrCat("--shard-slice=", slice, "/", spec_.shape.slices),
                  "--method=" + method,
                  "--store-dir=" + StoreDir(slice, replica),
                  "--threads=1",
                  "--no-pin",
                  "--metrics-address=127.0.0.1:0"};
  const auto add = [&](const std::string& flag) { spec.command.push_back(flag); };
  const int port = WorkerPort(slice, replica);
  switch (PlaceOf(replica, spec_.shape)) {
    case Place::kSharedMemory:
      add("--shm-listen=" + File(spec.name + ".shm"));
      add("--shm-bytes-per-client=16MiB");
      [[fallthrough]];
    case Place::kUnixSocket:
      add("--listen=unix:" + File(spec.name + ".sock"));
      break;
    case Place::kProxiedTcp:
      add(absl::StrCat("--listen=127.0.0.1:", port));
      break;
    case Place::kFarHost:
      add(absl::StrCat("--listen=", FarHost::address(), ":", port));
      add("--insecure");
      spec.network_namespace = spec_.far_namespace;
      break;
  }
  return spec;
}

std::string Cluster::WorkerAddress(int slice, int replica) const {
  const int port = WorkerPort(slice, replica);
  switch (PlaceOf(replica, spec_.shape)) {
    case Place::kSharedMemory:
      return "shm:" + File(WorkerName(slice, replica) + ".shm");
    case Place::kUnixSocket:
      return "unix:" + File(WorkerName(slice, replica) + ".sock");
    case Place::kProxiedTcp:
      return absl::StrCat("127.0.0.1:", port + 1);
    case Place::kFarHost:
      return absl::StrCat(FarHost::address(), ":", port);
  }
  return "";
}

ServiceSpec Cluster::FrontendSpec(int index) const {
  std::vector<std::string> addresses;
  for (int slice = 0; slice < spec_.shape.slices; ++slice) {
    for (int replica = 0; replica < spec_.shape.replicas; ++replica) {
      addresses.push_back(WorkerAddress(slice, replica));
    }
  }
  ServiceSpec spec;
  spec.name = absl::StrCat("frontend-", index);
  spec.run_dir = spec_.run_dir;
  spec.command = {spec_.programs + "/gpu-frontend",
                  "--model-path=" + spec_.model,
                  "--workers=" + absl::StrJoin(addresses, ","),
                  "--port=0",
                  "--metrics-address=127.0.0.1:0",
                  "--threads=1",
                  "--kv-cache-bytes=64MiB",
                  "--insecure"};  // the far host's workers
  return spec;
}

absl::Status Cluster::Start() {
  for (ServiceProcess* process : Processes()) process->Start();
  return AwaitHealthy(kStartTimeout);
}

ServiceProcess& Cluster::worker(int slice, int replica) {
  return *workers_[static_cast<size_t>(slice * spec_.shape.replicas + replica)];
}

std::vector<ServiceProcess*> Cluster::Workers() {
  std::vector<ServiceProcess*> workers;
  for (const auto& worker : workers_) workers.push_back(worker.get());
  return workers;
}

std::vector<ServiceProcess*> Cluster::Processes() {
  std::vector<ServiceProcess*> processes = Workers();
  for (const auto& frontend : frontends_) processes.push_back(frontend.get());
  return processes;
}

absl::Status Cluster::AwaitHealthy(absl::Duration timeout) {
  const absl::Time give_up = absl::Now() + timeout;
  while (true) {
    for (ServiceProcess* process : Processes()) ATELIER_RETURN_IF_ERROR(process->CheckAlive());
    const std::string missing = Missing();
    if (missing.empty()) return absl::OkStatus();
    if (absl::Now() > give_up) {
      return absl::DeadlineExceededError(
          absl::StrCat("not healed after ", absl::FormatDuration(timeout), ": ", missing));
    }
    absl::SleepFor(kPoll);
  }
}

std::string Cluster::Missing() {
  for (ServiceProcess* process : Processes()) {
    if (!process->Ready()) return process->name() + " does not serve";
  }
  for (int i = 0; i < spec_.shape.frontends; ++i) {
    if (std::string missing = MissingConnections(i); !missing.empty()) return missing;
    absl::MutexLock lock(&mutex_);
    frontend_addresses_[static_cast<size_t>(i)] = frontend(i).Fact("listen");
  }
  return "";
}

std::string Cluster::MissingConnections(int index) {
  const std::string page = FrontendMetrics(index);
  for (int slice = 0; slice < spec_.shape.slices; ++slice) {
    for (int replica = 0; replica < spec_.shape.replicas; ++replica) {
      const std::string gauge = absl::StrCat("atelier_frontend_worker_connected{worker=\"",
                                             WorkerAddress(slice, replica), "\"}");
      if (MetricValue(page, gauge) != 1) {
        return absl::StrCat(frontend(index).name(), " is not connected to ",
                            worker(slice, replica).name());
      }
    }
  }
  return "";
}

std::string Cluster::FrontendMetrics(int index) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(frontend(index).Fact("metrics"));
  return endpoint.ok() ? testing::HttpGet(endpoint->port, "/metrics") : std::string();
}

std::string Cluster::FrontendAddress(int index) const {
  absl::MutexLock lock(&mutex_);
  return frontend_addresses_[static_cast<size_t>(index)];
}

void Cluster::ForgetFrontendAddress(int index) {
  absl::MutexLock lock(&mutex_);
  frontend_addresses_[static_cast<size_t>(index)].clear();
}

}  // namespace atelier::faults
