#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "libs/base/clock.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

struct ServedShards;

// A validated call that waits for its turn.
struct QueuedCall {
  ForwardRequest request;
  std::shared_ptr<const CallContext> context;
  std::function<void(ForwardReply)> reply;
  absl::Time received;
  std::shared_ptr<ServedShards> served = nullptr;  // what its sums are of

  bool IsPrefill() const { return request.priority == CallPriority::kPrefill; }
};

struct BatcherOptions {
  int max_queued_calls = 1024;
  int max_queued_tokens = 65536;  // bounds the memory of what waits
  int max_batch_tokens = 8192;    // of merged calls; a single larger call runs alone
  // Batches led by decode calls that may overtake a waiting prefill call, one after the other.
  int max_overtakes = 8;
};

// Queues calls and says which of them to compute together: calls of the same layer, from whichever
// clients, so that each weight is read once for all. It never holds work back to wait for more:
// what arrives while a batch computes is merged into the next. Decode calls go before prefill
// calls, which are not starved. Thread-compatible: the owner locks. Never blocks. Add is O(1), Take
// O(queued calls).
class Batcher {
 public:
  Batcher(const BatcherOptions& options, Clock& clock) : options_(options), clock_(clock) {}

  // RESOURCE_EXHAUSTED naming the limit that is reached; then `call` is left as it was.
  absl::Status Add(QueuedCall&& call);

  struct Batch {
    std::vector<QueuedCall> calls;  // of one layer, oldest first; empty = nothing to do
    // Calls that ended while they waited: cancelled by their client, or past their deadline.
    struct Dropped {
      QueuedCall call;
      absl::Status status;  // CANCELLED or DEADLINE_EXCEEDED
    };
    std::vector<Dropped> dropped;
  };
  Batch Take();

  // Removes everything, for a shutdown.
  std::vector<QueuedCall> TakeAll();

  size_t num_calls() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }

 private:
  void DropEnded(Batch& batch);
  std::deque<QueuedCall>::const_iterator ChooseLeader();
  std::deque<QueuedCall>::const_iterator FirstOf(CallPriority priority) const;

  const BatcherOptions options_;
  Clock& clock_;
  std::deque<QueuedCall> queue_;  // in order of arrival
  int64_t queued_tokens_ = 0;
  int overtakes_ = 0;  // decode-led batches since a prefill call first waited in vain
};

}  // namespace atelier
