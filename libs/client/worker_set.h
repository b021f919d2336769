#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/log.h"
#include "libs/client/client.h"
#include "libs/client/routing_table.h"

namespace atelier {

struct ClientMetrics;

// Who holds what, and who takes calls, at one moment. Immutable.
struct Routes {
  std::shared_ptr<const RoutingTable> table;
  // By worker: 0 while calls must not go to it, else a number that differs after every reconnect.
  std::vector<uint64_t> connections;

  bool Live(size_t worker) const { return connections[worker] != 0; }
};

// What is known of every configured worker, and the routes that follow from it. Fed by the
// connections' state callbacks; thread-safe.
class WorkerSet {
 public:
  WorkerSet(std::vector<std::string> addresses, RoutingNeeds needs, const Logger& logger,
            ClientMetrics* metrics);

  // A connection's news: the worker's description, or why it is not usable.
  void Update(size_t worker, const absl::StatusOr<WorkerDescription>& news);

  // Blocks until there are routes, the workers that all answered cannot make any, or `deadline`.
  // Every worker is heard first, so that those that are there are all in the routes; one that is
  // silent until `deadline` is done without, if the others hold everything.
  absl::Status AwaitTable(absl::Time deadline);

  // Null until AwaitTable was OK.
  std::shared_ptr<const Routes> routes() const;
  // UNAVAILABLE with what keeps each worker of the group from taking calls.
  absl::Status WhyUnusable(const ReplicaGroup& group) const;
  absl::Status Ready() const;
  std::vector<WorkerInfo> Infos() const;

 private:
  struct Entry {
    std::string address;
    std::optional<WorkerDescription> description;  // the last that was accepted
    absl::Status status = absl::UnavailableError("not connected yet");
    bool heard = false;        // that it is there, or why not
    uint64_t connections = 0;  // so far
  };

  void Accept(size_t worker, const WorkerDescription& description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFits(Entry& entry, const WorkerDescription& description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<RoutingTable> Build() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void BuildFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Use(RoutingTable table) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountReplicas() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetStatus(Entry& entry, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<DescribedWorker> Described() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool AllDescribed() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool AllHeard() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Settled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Missing() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Why a worker is not used, with its address and what it held.
  std::string Reason(const Entry& entry) const;
  // What the workers that have answered do not hold.
  std::string NotHeld() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void WarnOfMixedMethods(const std::vector<DescribedWorker>& workers) const;

  const RoutingNeeds needs_;
  const Logger& logger_;
  ClientMetrics* const metrics_;
  mutable absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> counted_ ABSL_GUARDED_BY(mutex_);  // shards that have a metric
  std::shared_ptr<const RoutingTable> table_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Routes> routes_ ABSL_GUARDED_BY(mutex_);
  absl::Status table_error_ ABSL_GUARDED_BY(mutex_);  // why the described workers make no table
};

}  // namespace atelier
