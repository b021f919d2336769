#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/e2e/faults/service_process.h"

namespace atelier {

struct ServingClusterSpec {
  std::string programs;  // folder of expert-worker, gpu-frontend and bench_local_frontend
  std::string model;     // checkpoint
  std::string run_dir;   // logs, sockets, packed weights
  std::string name;      // of the experiment: its files' names begin so
  int threads = 1;       // of each process
  int far_namespace = -1;
};

// Real processes of one experiment; they end with it. For the main thread.
class ServingCluster {
 public:
  explicit ServingCluster(ServingClusterSpec spec) : spec_(std::move(spec)) {}

  // Packed at the start, as bench_local_frontend has them, or mapped from a folder that all workers
  // share.
  enum class Weights { kInMemory, kInStore };
  // Starts a worker that holds all experts and can be reached by each of the addresses below.
  faults::ServiceProcess& AddWorker(const std::string& name, Weights weights);
  std::string ShmAddress(const std::string& worker) const;
  std::string UnixAddress(const std::string& worker) const;
  // Over loopback. Empty while it does not serve.
  static std::string TcpAddress(faults::ServiceProcess& worker);
  // Its weights in memory, on the host of spec.far_namespace, where it has one address.
  faults::ServiceProcess& AddFarWorker(const std::string& name);
  static std::string FarAddress();

  faults::ServiceProcess& AddFrontend(const std::string& name,
                                      const std::vector<std::string>& workers);
  // bench_local_frontend: `where` is its operand.
  faults::ServiceProcess& AddLocalFrontend(const std::string& name, const std::string& where,
                                           const std::string& worker);

  // Waits until all of them serve, and every gpu-frontend is connected to all of its workers.
  absl::Status AwaitServing();

 private:
  struct Frontend {
    faults::ServiceProcess* process;
    std::vector<std::string> workers;
  };

  faults::ServiceProcess& Start(faults::ServiceSpec spec);
  faults::ServiceSpec WorkerSpec(const std::string& name) const;
  faults::ServiceSpec FrontendSpec(const std::string& name, std::vector<std::string> program) const;
  std::string File(const std::string& name) const;
  // What is not there yet; empty = nothing.
  std::string Missing();

  const ServingClusterSpec spec_;
  std::vector<std::unique_ptr<faults::ServiceProcess>> processes_;
  std::vector<Frontend> frontends_;
};

// Where its clients reach it.
std::string ListenAddress(faults::ServiceProcess& process);
// A service's /metrics page.
std::string MetricsPage(faults::ServiceProcess& process);

}  // namespace atelier
