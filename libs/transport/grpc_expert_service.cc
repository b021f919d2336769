#include "libs/transport/grpc_expert_service.h"

#include <algorithm>
#include <utility>

#include "libs/transport/grpc_deadline.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

// One unary Forward. Lives until gRPC is done with it and the handler has answered, whichever comes
// later: a handler that never answers holds no server up.
class UnaryForward final : public grpc::ServerUnaryReactor,
                           public CallContext,
                           public std::enable_shared_from_this<UnaryForward> {
 public:
  UnaryForward(const ForwardServing& serving, v1::ForwardResponse* response)
      : serving_(serving), response_(response) {}

  void Run(std::shared_ptr<const v1::ForwardRequest> message, absl::Time deadline) {
    self_ = shared_from_this();
    const uint64_t id = message->id();
    absl::StatusOr<ForwardRequest> request =
        DecodeForwardRequest(std::move(message), serving_.shape);
    if (!request.ok()) {
      serving_.handler.OnRefused(request.status());
      return FinishWith(request.status(), nullptr);
    }
    request->deadline = deadline;
    serving_.handler.Forward(*std::move(request), self_, [self = self_, id](ForwardReply reply) {
      self->Answer(id, std::move(reply));
    });
  }

  bool Cancelled() const override { return cancelled_.load(std::memory_order_relaxed); }

 private:
  void Answer(uint64_t id, ForwardReply reply) {
    auto response = EncodeBoundedReply(id, std::move(reply), serving_.max_message_bytes);
    const absl::Status status =
        response->has_status() ? FromWireStatus(response->status()) : absl::OkStatus();
    FinishWith(status, response.get());
  }

  void FinishWith(const absl::Status& status, v1::ForwardResponse* response) {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    if (response != nullptr && status.ok()) response_->Swap(response);
    Finish(ToGrpcStatus(status));
  }

  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
    FinishWith(absl::CancelledError("the caller has gone"), nullptr);
  }
  void OnDone() override { const std::shared_ptr<UnaryForward> self = std::move(self_); }

  const ForwardServing serving_;
  std::shared_ptr<UnaryForward> self_;  // released by OnDone
  std::atomic<bool> cancelled_{false};
  absl::Mutex mutex_;
  v1::ForwardResponse* response_ ABSL_GUARDED_BY(mutex_);  // gRPC's, valid until Finish
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void GrpcExpertService::BeginShutdown() {
  std::vector<std::weak_ptr<atelier::ForwardStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    shutting_down_ = true;
    streams.swap(streams_);
  }
  for (const auto& weak : streams) {
    if (const auto stream = weak.lock()) stream->BeginShutdown();
  }
}

grpc::ServerUnaryReactor* GrpcExpertService::Forward(grpc::CallbackServerContext* context,
                                                     const v1::ForwardRequest* request,
                                                     v1::ForwardResponse* response) {
  // gRPC's own mutable message, shown as const: taking its buffers spares a copy, and lets the
  // handler keep them beyond the call.
  auto message = std::make_shared<v1::ForwardRequest>();
  message->Swap(const_cast<v1::ForwardRequest*>(request));
  const absl::Time deadline =
      FromGrpcDeadline(context->deadline(), serving_.clock, serving_.default_timeout);
  const auto call = std::make_shared<UnaryForward>(serving_, response);
  call->Run(std::move(message), deadline);
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GrpcExpertService::ForwardStream(
    grpc::CallbackServerContext*) {
  const std::shared_ptr<atelier::ForwardStream> stream = atelier::ForwardStream::Start(serving_);
  bool shutting_down = false;
  {
    absl::MutexLock lock(&mutex_);
    shutting_down = shutting_down_;
    std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
    streams_.push_back(stream);
  }
  if (shutting_down) stream->BeginShutdown();
  return stream.get();
}

}  // namespace atelier
