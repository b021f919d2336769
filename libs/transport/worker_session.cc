#include "libs/transport/worker_session.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "libs/base/status_macros.h"
#include "libs/transport/codec.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/grpc_tuning.h"
#include "libs/transport/status_codes.h"

namespace atelier {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  const bool is_unix = absl::StartsWith(address, "unix:");
  return grpc::CreateCustomChannel(is_unix ? address : absl::StrCat("dns:///", address),
                                   grpc::InsecureChannelCredentials(), TunedChannelArguments());
}

}  // namespace

struct WorkerSession::Describe {
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::DescribeResponse response;

  mutable absl::Mutex mutex;
  bool answered ABSL_GUARDED_BY(mutex) = false;
  grpc::Status status ABSL_GUARDED_BY(mutex);

  bool Answered() const {
    absl::MutexLock lock(&mutex);
    return answered;
  }
  void AwaitAnswer() {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&answered));
  }
};

WorkerSession::WorkerSession(const std::string& address, std::function<void()> wake)
    : wake_(std::move(wake)),
      channel_(MakeChannel(address)),
      control_(v1::WorkerControl::NewStub(channel_)),
      forward_(channel_) {}

WorkerSession::~WorkerSession() {
  if (describe_ == nullptr) return;
  describe_->context.TryCancel();
  describe_->AwaitAnswer();
}

void WorkerSession::StartDescribe(absl::Duration timeout) {
  describe_ = std::make_unique<Describe>();
  Describe* describe = describe_.get();
  describe->context.set_deadline(ToGrpcDeadline(timeout));
  control_->async()->Describe(&describe->context, &describe->request, &describe->response,
                              [describe, wake = wake_](grpc::Status status) {
                                // All under the lock: who sees the answer may destroy what
                                // `wake` refers to.
                                absl::MutexLock lock(&describe->mutex);
                                describe->answered = true;
                                describe->status = std::move(status);
                                wake();
                              });
}

bool WorkerSession::DescribeAnswered() const {
  return describe_ != nullptr && describe_->Answered();
}

absl::StatusOr<WorkerDescription> WorkerSession::TakeDescription() {
  const std::unique_ptr<Describe> describe = std::move(describe_);
  absl::MutexLock lock(&describe->mutex);
  ATELIER_RETURN_IF_ERROR(FromGrpcStatus(describe->status));
  return DecodeDescription(describe->response);
}

std::shared_ptr<ClientStream> WorkerSession::OpenStream(ClientStream::Observer& observer) {
  stream_context_ = std::make_unique<grpc::ClientContext>();
  return ClientStream::Open(forward_, *stream_context_, observer);
}

void WorkerSession::CancelStream() {
  if (stream_context_ != nullptr) stream_context_->TryCancel();
}

}  // namespace atelier
