#pragma once

#include <atomic>
#include <deque>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "libs/transport/codec.h"
#include "libs/transport/forward_serving.h"
#include "libs/transport/worker_protocol.h"

namespace atelier {

// The credit of one stream: it is not read while this much is in flight on it.
inline constexpr int kMaxCallsPerStream = 1024;

// A response for `reply`; RESOURCE_EXHAUSTED inside when it would be larger than a message may be.
std::unique_ptr<v1::ForwardResponse> EncodeBoundedReply(uint64_t id, ForwardReply reply,
                                                        int64_t max_message_bytes);

// The worker's end of one ForwardStream. Lives until gRPC is done with it and every call that it
// handed out has been answered (answers after the stream's end are dropped). A message that is no
// ForwardRequest ends it with INVALID_ARGUMENT. Thread-safe.
class ForwardStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public std::enable_shared_from_this<ForwardStream> {
 public:
  static std::shared_ptr<ForwardStream> Start(const ForwardServing& serving);

  // Reads no more; ends the stream with UNAVAILABLE once what is in flight has been answered.
  void BeginShutdown();

 private:
  class Call;
  struct Outgoing {
    grpc::ByteBuffer message;
    int64_t bytes = 0;  // of its tensors
  };

  explicit ForwardStream(const ForwardServing& serving) : serving_(serving) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Handle(std::shared_ptr<v1::ForwardRequest> message);
  void CancelCall(uint64_t id);
  std::shared_ptr<Call> AddCall(const v1::ForwardRequest& message);
  void Refuse(uint64_t id, const absl::Status& status);
  void Answer(const std::shared_ptr<Call>& call, ForwardReply reply);

  static Outgoing Serialized(const v1::ForwardResponse& response);
  void EnqueueLocked(Outgoing response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops what is in flight; `status` goes to the client once nothing is being written.
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadMoreLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishIfIdleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ForwardServing serving_;
  std::shared_ptr<ForwardStream> self_;  // released by OnDone

  absl::Mutex mutex_;
  grpc::ByteBuffer incoming_;  // gRPC's while reading_
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  std::deque<Outgoing> writes_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of requests in calls_ and responses in writes_
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);       // why no call is served any more; OK = all are
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called: no operation may follow
};

}  // namespace atelier
