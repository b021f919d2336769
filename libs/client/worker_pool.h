#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/client/client.h"
#include "libs/client/hedge_budget.h"
#include "libs/client/replica_health.h"
#include "libs/client/worker_set.h"
#include "libs/metrics/metrics.h"
#include "libs/transport/worker_connection.h"

namespace atelier {

// The workers of one client: what they hold, the connections to them, how well each does and what
// is counted of it. Thread-safe.
class WorkerPool {
 public:
  WorkerPool(const ClientOptions& options, Clock& clock, const Logger& logger,
             ClientMetrics* metrics);
  ~WorkerPool();

  const ClientOptions& options() const { return options_; }
  Clock& clock() const { return clock_; }
  WorkerSet& workers() { return workers_; }
  ReplicaHealth& health() { return health_; }
  HedgeBudget& budget() { return budget_; }

  std::unique_ptr<ForwardInFlight> Send(size_t worker,
                                        std::shared_ptr<const EncodedForward> request,
                                        absl::Time deadline, WorkerConnection::DoneCallback done);
  // Sends the request also to those workers of the group whose ejection is over, for them to show
  // whether they are well; nobody waits for them.
  void Probe(const ReplicaGroup& group, const Routes& routes, int rows,
             const std::shared_ptr<const EncodedForward>& request);

  // Asks the worker for a sign of life, which the health hears of.
  void AskForSign(size_t worker);

  // The replicas of the group that a call of `layer` may go to, the preferred one first; those that
  // are ejected only when there are too few others.
  std::vector<size_t> Choices(const ReplicaGroup& group, const Routes& routes, int layer) const;

  // How many times something happened at one worker.
  enum class Event { kFailover, kHedge, kNotFinite, kLateAnswer };
  void Count(Event event, size_t worker);
  void CountAnswer(size_t worker, absl::Duration latency, const absl::Status& status);

 private:
  struct Counters {
    prometheus::Histogram* call_seconds = nullptr;
    std::vector<prometheus::Counter*> events;  // by Event
    prometheus::Counter* ejections = nullptr;
    prometheus::Gauge* ejected = nullptr;
  };

  void OnEjection(size_t worker, bool ejected);

  const ClientOptions options_;
  Clock& clock_;
  const Logger& logger_;
  ClientMetrics* const metrics_;
  std::vector<Counters> counters_;    // by worker; empty without metrics
  const std::vector<int> distances_;  // by worker: 0 = shared memory, 1 = this host, 2 = beyond
  const size_t first_choice_;         // differs between clients, so that they spread
  WorkerSet workers_;
  ReplicaHealth health_;
  HedgeBudget budget_;
  absl::Mutex probes_mutex_;
  // By worker: its last probe. Destroyed before what their callbacks use.
  std::vector<std::unique_ptr<ForwardInFlight>> probes_ ABSL_GUARDED_BY(probes_mutex_);
  // Destroyed first: they call workers_ and health_.
  std::vector<std::unique_ptr<WorkerConnection>> connections_;
};

}  // namespace atelier
