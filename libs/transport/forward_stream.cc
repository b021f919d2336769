#include "libs/transport/forward_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "libs/base/check.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

int64_t TensorBytes(const v1::ForwardRequest& message) {
  return static_cast<int64_t>(message.hidden().size() + message.hidden_scales().size() +
                              message.expert_ids().size() + message.router_weights().size());
}

int64_t TensorBytes(const v1::ForwardResponse& message) {
  int64_t bytes = 0;
  for (const v1::PartialSum& sum : message.sums()) bytes += static_cast<int64_t>(sum.data().size());
  return bytes;
}

}  // namespace

std::unique_ptr<v1::ForwardResponse> EncodeBoundedReply(uint64_t id, ForwardReply reply,
                                                        int64_t max_message_bytes) {
  int64_t bytes = 0;
  for (const ShardSum& sum : reply.sums) bytes += static_cast<int64_t>(sum.data.size());
  if (bytes > max_message_bytes) {
    reply.status = absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", bytes, " bytes, max_message_bytes=", max_message_bytes,
                     "; send fewer rows at once"));
  }
  auto response = std::make_unique<v1::ForwardResponse>();
  EncodeForwardReply(id, std::move(reply), response.get());
  return response;
}

class ForwardStream::Call final : public CallContext {
 public:
  Call(uint64_t id, int64_t bytes) : id_(id), bytes_(bytes) {}

  bool Cancelled() const override { return cancelled_.load(std::memory_order_relaxed); }
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  uint64_t id() const { return id_; }
  int64_t bytes() const { return bytes_; }

 private:
  const uint64_t id_;
  const int64_t bytes_;
  std::atomic<bool> cancelled_{false};
};

std::shared_ptr<ForwardStream> ForwardStream::Start(const ForwardServing& serving) {
  const std::shared_ptr<ForwardStream> stream(new ForwardStream(serving));
  stream->self_ = stream;
  // At once, so that a client knows that the stream stands before its first answer.
  stream->StartSendInitialMetadata();
  absl::MutexLock lock(&stream->mutex_);
  stream->ReadMoreLocked();
  return stream;
}

void ForwardStream::BeginShutdown() {
  absl::MutexLock lock(&mutex_);
  shutting_down_ = true;
  FinishIfIdleLocked();
}

void ForwardStream::OnReadDone(bool ok) {
  grpc::ByteBuffer bytes;
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    bytes.Swap(&incoming_);
    if (!ok) {
      half_closed_ = true;
      FinishIfIdleLocked();
      return;
    }
    if (finished_ || !end_.ok()) return;
  }
  auto message = std::make_shared<v1::ForwardRequest>();
  const bool parsed =
      grpc::SerializationTraits<v1::ForwardRequest>::Deserialize(&bytes, message.get()).ok();
  if (parsed) Handle(std::move(message));
  absl::MutexLock lock(&mutex_);
  // Nothing tells whose call it was to be: the peer speaks another protocol.
  if (!parsed) return EndLocked(absl::InvalidArgumentError("a message is no ForwardRequest"));
  ReadMoreLocked();
}

void ForwardStream::Handle(std::shared_ptr<v1::ForwardRequest> message) {
  const uint64_t id = message->id();
  if (message->cancel()) return CancelCall(id);
  const absl::Duration timeout = RequestTimeout(*message, serving_.default_timeout);
  absl::StatusOr<ForwardRequest> request = DecodeForwardRequest(message, serving_.shape);
  if (!request.ok()) return Refuse(id, request.status());
  const std::shared_ptr<Call> call = AddCall(*message);
  if (call == nullptr) {
    return Refuse(id, absl::InvalidArgumentError(absl::StrCat("id=", id, " is still in flight")));
  }
  request->deadline = serving_.clock.Now() + timeout;
  serving_.handler.Forward(*std::move(request), call,
                           [self = shared_from_this(), call](ForwardReply reply) {
                             self->Answer(call, std::move(reply));
                           });
}

void ForwardStream::CancelCall(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  if (const auto it = calls_.find(id); it != calls_.end()) it->second->Cancel();
}

std::shared_ptr<ForwardStream::Call> ForwardStream::AddCall(const v1::ForwardRequest& message) {
  auto call = std::make_shared<Call>(message.id(), TensorBytes(message));
  absl::MutexLock lock(&mutex_);
  if (!calls_.emplace(message.id(), call).second) return nullptr;
  // The stream may have been cancelled since this message was read.
  if (!end_.ok()) call->Cancel();
  bytes_ += call->bytes();
  return call;
}

void ForwardStream::Refuse(uint64_t id, const absl::Status& status) {
  serving_.handler.OnRefused(status);
  ForwardReply reply;
  reply.status = status;
  Outgoing response =
      Serialized(*EncodeBoundedReply(id, std::move(reply), serving_.max_message_bytes));
  absl::MutexLock lock(&mutex_);
  EnqueueLocked(std::move(response));
}

void ForwardStream::Answer(const std::shared_ptr<Call>& call, ForwardReply reply) {
  Outgoing response =
      Serialized(*EncodeBoundedReply(call->id(), std::move(reply), serving_.max_message_bytes));
  absl::MutexLock lock(&mutex_);
  calls_.erase(call->id());
  bytes_ -= call->bytes();
  if (!call->Cancelled()) EnqueueLocked(std::move(response));
  ReadMoreLocked();
  FinishIfIdleLocked();
}

ForwardStream::Outgoing ForwardStream::Serialized(const v1::ForwardResponse& response) {
  Outgoing outgoing;
  outgoing.bytes = TensorBytes(response);
  bool own_buffer = false;
  ATELIER_CHECK(grpc::SerializationTraits<v1::ForwardResponse>::Serialize(
                    response, &outgoing.message, &own_buffer)
                    .ok());
  return outgoing;
}

void ForwardStream::EnqueueLocked(Outgoing response) {
  if (finished_ || !end_.ok()) return;
  bytes_ += response.bytes;
  writes_.push_back(std::move(response));
  if (writes_.size() == 1) StartWrite(&writes_.front().message);
}

void ForwardStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  bytes_ -= writes_.front().bytes;
  writes_.pop_front();
  if (!ok) writes_.clear();  // the stream is broken; OnCancel follows or came before
  if (!writes_.empty() && end_.ok()) {
    StartWrite(&writes_.front().message);
  } else {
    writes_.clear();
  }
  ReadMoreLocked();
  FinishIfIdleLocked();
}

void ForwardStream::OnCancel() {
  absl::MutexLock lock(&mutex_);
  EndLocked(absl::CancelledError("the caller has gone"));
}

void ForwardStream::EndLocked(const absl::Status& status) {
  if (end_.ok()) end_ = status;
  for (const auto& [id, call] : calls_) call->Cancel();
  FinishIfIdleLocked();
}

void ForwardStream::OnDone() {
  // May be the last reference: nothing of this object is touched after.
  const std::shared_ptr<ForwardStream> self = std::move(self_);
}

void ForwardStream::ReadMoreLocked() {
  if (reading_ || half_closed_ || finished_ || !end_.ok()) return;
  if (calls_.size() + writes_.size() >= static_cast<size_t>(kMaxCallsPerStream)) return;
  if (bytes_ >= serving_.max_message_bytes) return;
  reading_ = true;
  StartRead(&incoming_);
}

void ForwardStream::FinishIfIdleLocked() {
  if (finished_ || !writes_.empty()) return;
  if (!end_.ok()) {
    finished_ = true;
    Finish(ToGrpcStatus(end_));
  } else if (calls_.empty() && half_closed_) {
    finished_ = true;
    Finish(grpc::Status::OK);
  } else if (calls_.empty() && shutting_down_) {
    finished_ = true;
    Finish(ToGrpcStatus(absl::UnavailableError("the worker is shutting down")));
  }
}

}  // namespace atelier
