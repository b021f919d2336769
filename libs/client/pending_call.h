#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/client/client.h"
#include "libs/client/routing_table.h"
#include "libs/transport/worker_connection.h"

namespace atelier {

// The rows that go to one worker, and what it answered.
struct WorkerPart {
  size_t worker = 0;
  std::vector<int> rows;  // of the batch, ascending
  ForwardReply reply;
};

// One layer's call to several workers: collects their answers and adds their sums. Answers come
// from transport threads; Wait belongs to the caller.
class PendingCall final : public PendingForward {
 public:
  // `table` is the one that the parts were made with.
  PendingCall(std::shared_ptr<const RoutingTable> table, int layer, int num_tokens,
              std::vector<WorkerPart> parts);
  // Abandons the workers that have not answered.
  ~PendingCall() override;

  const std::vector<WorkerPart>& parts() const { return parts_; }
  // Part `part`'s answer; the first error of any part ends the wait.
  void Finish(size_t part, ForwardReply reply);
  // Kept until this call is destroyed. Called by the sender, before Wait.
  void Keep(std::unique_ptr<ForwardInFlight> in_flight);

  absl::Status Wait(float* out) override;

 private:
  bool Settled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return outstanding_ == 0 || !error_.ok();
  }
  absl::Status AddShard(const RoutedShard& shard, float* out) const;

  const std::shared_ptr<const RoutingTable> table_;
  const int layer_;
  const int num_tokens_;
  absl::Mutex mutex_;
  size_t outstanding_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  // A part's reply is written once, before `outstanding_` falls; the rest never changes.
  std::vector<WorkerPart> parts_;
  std::vector<std::unique_ptr<ForwardInFlight>> in_flight_;
};

}  // namespace atelier
