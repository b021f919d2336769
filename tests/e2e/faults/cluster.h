#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/e2e/faults/fault_menu.h"
#include "tests/e2e/faults/service_process.h"
#include "tests/e2e/faults/tcp_proxy.h"

namespace atelier::faults {

// Where a replica runs and how frontends reach it.
enum class Place { kSharedMemory, kProxiedTcp, kUnixSocket, kFarHost };
// Of a replica of any slice: the last one is far where there is a link, the first shares memory.
Place PlaceOf(int replica, const ClusterShape& shape);

struct ClusterSpec {
  ClusterShape shape;
  std::string programs;              // folder of expert-worker and gpu-frontend
  std::string model;                 // checkpoint
  std::string run_dir;               // logs, sockets, packed weights
  std::vector<std::string> methods;  // slice s keeps its weights as the (s modulo size)-th
  int base_port = 0;                 // two ports per worker from here on
  int far_namespace = -1;
};

// The processes under test: workers (slices x replicas), frontends, and proxies before some
// workers. Used by the main thread; FrontendAddress by any.
class Cluster {
 public:
  explicit Cluster(ClusterSpec spec);

  // Starts everything and waits until it serves.
  absl::Status Start();
  // Waits until every process serves and every frontend is connected to every worker.
  // DEADLINE_EXCEEDED says what is missing; INTERNAL which process has ended.
  absl::Status AwaitHealthy(absl::Duration timeout);

  ServiceProcess& worker(int slice, int replica);
  // How frontends reach it.
  std::string WorkerAddress(int slice, int replica) const;
  ServiceProcess& frontend(int index) { return *frontends_[static_cast<size_t>(index)]; }
  TcpProxy& proxy(int slice) { return *proxies_[static_cast<size_t>(slice)]; }
  // A replica of the first slice that shares its packed weights with nobody, and where they are.
  ServiceProcess& loner() { return worker(0, kLoner); }
  std::string loner_store_dir() const { return StoreDir(0, kLoner); }
  // The first replica that stands behind the proxy.
  int proxied_replica() const;
  const ClusterShape& shape() const { return spec_.shape; }
  std::vector<ServiceProcess*> Processes();
  std::vector<ServiceProcess*> Workers();

  // Where the frontend serves; empty while it does not.
  std::string FrontendAddress(int index) const;
  void ForgetFrontendAddress(int index);
  // Its /metrics page.
  std::string FrontendMetrics(int index);

 private:
  static constexpr int kLoner = 1;  // replica

  std::string StoreDir(int slice, int replica) const;
  ServiceSpec WorkerSpec(int slice, int replica) const;
  ServiceSpec FrontendSpec(int index) const;
  int WorkerPort(int slice, int replica) const;
  std::string File(const std::string& name) const { return spec_.run_dir + "/" + name; }
  // What is not there yet; empty = nothing.
  std::string Missing();
  std::string MissingConnections(int frontend);

  const ClusterSpec spec_;
  std::vector<std::unique_ptr<ServiceProcess>> workers_;  // slice-major
  std::vector<std::unique_ptr<ServiceProcess>> frontends_;
  std::vector<std::unique_ptr<TcpProxy>> proxies_;  // by slice
  mutable absl::Mutex mutex_;
  std::vector<std::string> frontend_addresses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier::faults
