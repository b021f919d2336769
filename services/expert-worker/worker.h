#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/kernels/kernel_table.h"
#include "libs/metrics/metrics.h"
#include "libs/metrics/observability_server.h"
#include "libs/numa/node_arena.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/worker_server.h"
#include "prometheus/registry.h"
#include "services/expert-worker/expert_store.h"
#include "services/expert-worker/lifecycle.h"
#include "services/expert-worker/options.h"
#include "services/expert-worker/store_host.h"
#include "services/expert-worker/worker_service.h"

namespace atelier {

// The process, but for flags and signals: puts the parts together and orders their start and end.
// Start, Load and Drain are called one after the other; CancelLoading from any thread.
class Worker {
 public:
  // Reads the checkpoint's headers and opens the ports, so that what is wrong with either is known
  // before minutes of packing. Until Load has ended calls are UNAVAILABLE. Errors as Checkpoint's,
  // NodeArena's, KernelTable's, PlanShards' and the servers'.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerOptions& options, Clock& clock,
                                                       const Logger& logger);
  ~Worker();

  // Packs the weights and serves. Blocks until calls are taken. CANCELLED after CancelLoading.
  absl::Status Load();
  void CancelLoading() { loading_cancelled_ = true; }

  // Turns readiness off, refuses new calls, waits for those in flight (at most the drain timeout)
  // and closes the ports. Blocks. False when the timeout passed first: a batch that is being
  // computed cannot be interrupted, so the process has to end with the ports still open.
  bool Drain();

  // As bound, with real ports.
  std::vector<std::string> addresses() const { return server_->Addresses(); }
  std::string metrics_address() const { return observability_->endpoint().ToString(); }

 private:
  Worker(const WorkerOptions& options, Clock& clock, const Logger& logger);

  absl::Status OpenModel();
  absl::Status ReadPlacement();
  absl::Status ReadSkippedExperts();
  absl::Status OpenPorts();
  absl::Status ShareMemory();
  absl::Status LoadAndServe();
  absl::Status NameShardFlags(const absl::Status& status) const;
  absl::StatusOr<WorkerService::Served> DescribeServed() const;

  const WorkerOptions options_;
  Clock& clock_;
  const Logger& logger_;
  prometheus::Registry registry_;
  WorkerMetrics metrics_;
  Lifecycle lifecycle_;
  std::atomic<bool> loading_cancelled_{false};

  std::unique_ptr<KernelTable> kernels_;
  std::unique_ptr<NodeArena> arena_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<ShardSpec> shards_;
  ExpertSet skipped_;
  LayerMethods methods_;
  std::unique_ptr<StoreHost> host_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<ShmWorkerServer> shm_server_;  // null = off
  std::unique_ptr<ObservabilityServer> observability_;
};

}  // namespace atelier
