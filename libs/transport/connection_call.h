#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "libs/transport/codec.h"
#include "libs/transport/encoded_forward.h"
#include "libs/transport/worker_connection.h"

namespace atelier {

// One Forward on a connection: gathers the answers to its messages, and answers exactly once unless
// it is abandoned first. Thread-safe.
class ConnectionCall {
 public:
  // The call is cut into `num_parts` messages; `shards` are those that the worker holds of the
  // layer by its description.
  ConnectionCall(std::shared_ptr<const GrpcEncodedForward> request, absl::Time deadline,
                 WorkerConnection::DoneCallback done);

  const GrpcEncodedForward& request() const { return *request_; }
  const std::shared_ptr<const GrpcEncodedForward>& shared_request() const { return request_; }
  absl::Time deadline() const { return deadline_; }

  // Before the first part is sent.
  void Expect(std::shared_ptr<const WorkerDescription> described, std::vector<int> shards,
              int num_parts);
  ExpectedSums ExpectedOf(int row_begin, int row_end) const;
  // Rows [row_begin, …) have been answered. Answers the call when it was the last part. A part that
  // failed fails the call at once: then, and when the call is over already, the result is false.
  bool AddPart(int row_begin, int row_end, ForwardReply part);
  void Fail(const absl::Status& status);
  // No callback from now on; waits for one that runs, unless called from inside it.
  void Abandon();
  // Answered or abandoned: no callback runs or will.
  bool IsOver() const;

 private:
  enum class State { kPending, kAnswering, kOver };

  void Answer(ForwardReply reply);
  void MergeLocked(int row_begin, ForwardReply part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const GrpcEncodedForward> request_;
  const absl::Time deadline_;
  std::shared_ptr<const WorkerDescription> described_;
  std::vector<int> shards_;
  int num_parts_ = 1;

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kPending;
  std::thread::id answering_ ABSL_GUARDED_BY(mutex_);
  WorkerConnection::DoneCallback done_ ABSL_GUARDED_BY(mutex_);
  int parts_answered_ ABSL_GUARDED_BY(mutex_) = 0;
  ForwardReply reply_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atelier
