#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/compat/sglang_scheduler.pb.h"
#include "services/gpu-frontend/api/request_mapping.h"
#include "services/gpu-frontend/api/response_stream.h"
#include "services/gpu-frontend/engine/engine.h"

namespace atelier {

// Where a call's messages go. Called under the call's lock, from any thread: returns at once and
// calls nothing of the call from inside. No Write is started while one is under way; nothing is
// called after Finish.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Starts sending; `message` stays valid until the call's OnWritten, which is due once.
  virtual void Write(const sglang::grpc::scheduler::GenerateResponse* message) = 0;
  virtual void Finish(const absl::Status& status) = 0;
};

// One Generate call between the engine, whose events it receives, and a writer. A call that is
// refused ends with Finish alone, so that the gateway sees a plain status before any metadata; so
// does one whose caller goes away in prefill. The engine's thread never waits for the reader.
// Thread-safe. Shared by the transport and, until its last event, the engine.
class GenerateCall final : public RequestSink, public std::enable_shared_from_this<GenerateCall> {
 public:
  // `writer` must live until Finish has been called on it, `engine` until the call is finished.
  GenerateCall(const MappedRequest& mapped, Engine& engine, ResponseWriter& writer);

  // Hands the request to the engine. Called once.
  void Submit(GenerateRequest request);

  void OnDelta(TokenDelta delta) override;
  void OnError(absl::Status status) override;
  // The write under way has ended; `ok` = false means that the caller cannot be reached any more.
  void OnWritten(bool ok);
  // The caller has gone. May come at any moment, also before Submit has returned.
  void OnCancelled();

 private:
  // Sends the next message, or ends the call, when that is possible now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string id_;
  Engine& engine_;
  ResponseWriter& writer_;

  absl::Mutex mutex_;
  ResponseStream responses_ ABSL_GUARDED_BY(mutex_);
  sglang::grpc::scheduler::GenerateResponse message_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> error_ ABSL_GUARDED_BY(mutex_);
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // message_ is the writer's
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // Finish was called
};

}  // namespace atelier
