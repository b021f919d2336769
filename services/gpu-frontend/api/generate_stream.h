#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "proto/compat/sglang_scheduler.pb.h"
#include "services/gpu-frontend/api/request_mapping.h"
#include "services/gpu-frontend/api/response_stream.h"
#include "services/gpu-frontend/engine/engine.h"

namespace atelier {

// Counts calls in flight, so that what they refer to can be destroyed after the last. Thread-safe.
class CallCounter {
 public:
  void Enter();
  void Leave();
  // Blocks until every call that entered has left.
  void AwaitNone();

 private:
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One Generate call: gRPC's reactor and the engine's sink in one. It lives until both have let go:
// gRPC with OnDone, the engine after the last event. Initial metadata leaves with the first
// message, so a refused request ends with a status alone (the gateway then retries or maps it to
// HTTP), and a client that goes away in prefill is seen as a cancelled call. Thread-safe; the
// engine's thread never waits for the reader.
class GenerateStream final
    : public grpc::ServerWriteReactor<sglang::grpc::scheduler::GenerateResponse>,
      public RequestSink,
      public std::enable_shared_from_this<GenerateStream> {
 public:
  // Starts a call; gRPC gets the pointer. `engine` and `calls` must outlive it (calls says when).
  static GenerateStream* Start(MappedRequest mapped, Engine& engine, CallCounter& calls);
  // A call that ends with an error at once.
  static GenerateStream* Refuse(const absl::Status& status, Engine* engine, CallCounter& calls);

  GenerateStream(ResponseOptions options, Engine* engine, CallCounter& calls);

  void OnDelta(TokenDelta delta) override;
  void OnError(absl::Status status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Submit(GenerateRequest request);
  // Sends the next message, or ends the call, when that is possible now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string id_;
  Engine* const engine_;
  CallCounter& calls_;
  std::shared_ptr<GenerateStream> self_;  // gRPC's share, dropped in OnDone

  absl::Mutex mutex_;
  ResponseStream responses_ ABSL_GUARDED_BY(mutex_);
  sglang::grpc::scheduler::GenerateResponse message_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> error_ ABSL_GUARDED_BY(mutex_);
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // message_ belongs to gRPC
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // Finish was called
};

}  // namespace atelier
