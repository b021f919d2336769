#include "libs/transport/client_stream.h"

#include <algorithm>
#include <utility>

#include "libs/transport/grpc_tuning.h"
#include "libs/transport/status_codes.h"

namespace atelier {

std::shared_ptr<ClientStream> ClientStream::Open(absl::FunctionRef<void(ClientStream&)> bind,
                                                 Observer& observer) {
  const std::shared_ptr<ClientStream> stream(new ClientStream(observer));
  stream->self_ = stream;
  bind(*stream);
  // For the writes, which start outside gRPC's reactions; removed with the last read.
  stream->AddHold();
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

CallStream::Limits ClientStream::limits() const { return {kMaxMessageBytes, kMaxMessageBytes}; }

absl::Status ClientStream::Send(const CallMessage& message) {
  const GrpcEncodedForward::Head head{message.id, message.epoch, message.timeout_us, message.form};
  Write(message.id, message.request->Message(head, message.row_begin, message.row_end));
  return absl::OkStatus();
}

void ClientStream::Cancel(uint64_t id) {
  if (!Withdraw(id)) Write(id, CancelMessage(id));
}

void ClientStream::Write(uint64_t id, grpc::ByteBuffer message) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  writes_.push_back({id, std::move(message)});
  if (writes_.size() == 1) StartWrite(&writes_.front().message);
}

bool ClientStream::Withdraw(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  if (writes_.empty()) return false;
  const auto it = std::find_if(std::next(writes_.begin()), writes_.end(),
                               [id](const Outgoing& outgoing) { return outgoing.id == id; });
  if (it == writes_.end()) return false;
  writes_.erase(it);
  return true;
}

void ClientStream::OnReadInitialMetadataDone(bool ok) {
  if (ok) observer_.OnStreamReady();
}

void ClientStream::OnReadDone(bool ok) {
  if (ok) {
    observer_.OnAnswer(incoming_.id(), [this](const ExpectedSums& expected) {
      return DecodeForwardReply(std::move(incoming_), expected);
    });
    incoming_.Clear();
    StartRead(&incoming_);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  RemoveHold();
}

void ClientStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writes_.pop_front();
  // A failed write means a broken stream: the read fails as well and ends it.
  if (!ok || closed_) writes_.clear();
  if (!writes_.empty()) StartWrite(&writes_.front().message);
}

void ClientStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<ClientStream> self = std::move(self_);
  observer_.OnStreamDone(FromGrpcStatus(status));
}

}  // namespace atelier
