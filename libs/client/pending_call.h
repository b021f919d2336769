#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "libs/client/client.h"
#include "libs/client/part_attempts.h"
#include "libs/client/routing_table.h"
#include "libs/client/worker_pool.h"
#include "libs/transport/worker_connection.h"

namespace atelier {

// The rows of a call that one replica of a group of shards is to compute.
struct PartRequest {
  const ReplicaGroup* group = nullptr;  // of the table that the call was made with
  std::vector<size_t> replicas;         // of the group, the preferred one first
  std::vector<int> rows;                // of the batch, ascending
  std::shared_ptr<const EncodedForward> encoded;
};

// One layer's call to several workers: sends its parts, sends them elsewhere when a replica fails
// or is late, and adds the sums. Answers come from transport threads; all else happens on the
// caller's, so a failure before Wait is mended in Wait.
class PendingCall final : public PendingForward {
 public:
  // Sends each part. The pool must outlive the call.
  PendingCall(WorkerPool& pool, std::shared_ptr<const Routes> routes, int layer, int num_tokens,
              absl::Time deadline, std::vector<PartRequest> parts);
  // Abandons the workers that have not answered.
  ~PendingCall() override;

  absl::Status Wait(float* out) override;

 private:
  struct Part {
    PartRequest request;
    PartAttempts attempts;
    std::vector<std::unique_ptr<ForwardInFlight>> in_flight;
    size_t looked_for = 0;  // of in_flight
    bool answered = false;
    ForwardReply reply;  // once answered, of `worker`; before, the first one that is not finite
    size_t worker = 0;
  };
  struct Answer {
    size_t part = 0;
    size_t attempt = 0;
    absl::Time time;
    ForwardReply reply;
  };

  // Asks whom there is to ask; not OK when the part cannot be answered. Lowers `until`.
  absl::Status Advance(size_t part, const Routes& routes, absl::Time* until);
  void Ask(size_t part, size_t worker, const Routes& routes);
  void Count(const Part& part, const PartAttempts::Step& step);
  void Take(Answer answer);
  void TakeNotFinite(Part& part, size_t attempt, ForwardReply reply);
  // Where a look may catch the answer, it comes on this thread, with nobody to be woken.
  void LookForAnswers();
  std::vector<Answer> AwaitAnswers(absl::Time until);
  std::vector<Answer> TakeAnswers();
  bool HasAnswers();
  // Whether the reply holds the sums of the group's shards for the part's rows.
  absl::Status CheckSums(const Part& part, size_t worker, const ForwardReply& reply) const;
  const std::string* SumOf(const RoutedShard& shard, const ForwardReply& reply) const;
  void AddShard(size_t shard, float* out) const;

  WorkerPool& pool_;
  const std::shared_ptr<const Routes> routes_;  // when the call was made
  const RoutedLayer& layer_;
  const int num_tokens_;
  const absl::Time deadline_;
  std::vector<Part> parts_;
  absl::Mutex mutex_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);  // not taken yet
};

}  // namespace atelier
