#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "libs/base/log.h"
#include "libs/client/client.h"
#include "libs/client/routing_table.h"

namespace atelier {

struct ClientMetrics;

// What is known of every configured worker, and the routing table that follows from it. Fed by the
// connections' state callbacks; thread-safe.
class WorkerSet {
 public:
  WorkerSet(std::vector<std::string> addresses, RoutingNeeds needs, const Logger& logger,
            ClientMetrics* metrics);

  // A connection's news: the worker's description, or why it is not usable.
  void Update(size_t worker, const absl::StatusOr<WorkerDescription>& news);

  // Blocks until a table exists, the workers that all answered cannot make one, or `deadline`.
  absl::Status AwaitTable(absl::Time deadline);

  std::shared_ptr<const RoutingTable> table() const;
  // OK if calls may go to the worker; else UNAVAILABLE with the reason.
  absl::Status Usable(size_t worker) const;
  absl::Status Ready() const;
  std::vector<WorkerInfo> Infos() const;

 private:
  struct Entry {
    std::string address;
    std::optional<WorkerDescription> description;  // the last that was accepted
    absl::Status status = absl::UnavailableError("not connected yet");
    bool was_connected = false;
  };

  void Accept(size_t worker, const WorkerDescription& description)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BuildTable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetStatus(Entry& entry, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllDescribed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  std::shared_ptr<const RoutingTable> table_ ABSL_GUARDED_BY(mutex_);
  absl::Status table_error_ ABSL_GUARDED_BY(mutex_);  // why the described workers make no table
};

}  // namespace atelier
