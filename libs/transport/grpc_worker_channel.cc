#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "libs/transport/client_stream.h"
#include "libs/transport/codec.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/grpc_security.h"
#include "libs/transport/grpc_tuning.h"
#include "libs/transport/status_codes.h"
#include "libs/transport/worker_channel.h"
#include "proto/atelier/v1/control.grpc.pb.h"

namespace atelier {
namespace {

// Requests are sent as ready-made bytes, responses are parsed.
using ForwardStreamStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::ForwardResponse>;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, ChannelSecurity& security) {
  grpc::ChannelArguments arguments = TunedChannelArguments();
  if (absl::StartsWith(address, "unix:")) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!security.server_name().empty()) arguments.SetSslTargetNameOverride(security.server_name());
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", address), security.Credentials(),
                                   arguments);
}

// Destroyed on the thread that drives it: the last owner of a channel stops gRPC's threads.
class GrpcWorkerChannel final : public WorkerChannel {
 public:
  GrpcWorkerChannel(const std::string& address, ChannelSecurity& security)
      : channel_(MakeChannel(address, security)),
        control_(v1::WorkerControl::NewStub(channel_)),
        forward_(channel_) {}

  void Describe(absl::Duration timeout, DescribeCallback done) override {
    describe_ = std::make_unique<DescribeCall>();
    DescribeCall* const call = describe_.get();
    call->context.set_deadline(ToGrpcDeadline(timeout));
    control_->async()->Describe(&call->context, &call->request, &call->response,
                                [call, done = std::move(done)](const grpc::Status& status) {
                                  const absl::Status described = FromGrpcStatus(status);
                                  if (!described.ok()) return done(described);
                                  done(DecodeDescription(call->response));
                                });
  }
  void CancelDescribe() override {
    if (describe_ != nullptr) describe_->context.TryCancel();
  }

  std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer) override {
    stream_context_ = std::make_unique<grpc::ClientContext>();
    return ClientStream::Open(
        [this](ClientStream& stream) {
          forward_.PrepareBidiStreamingCall(stream_context_.get(),
                                            "/atelier.v1.ExpertService/ForwardStream",
                                            grpc::StubOptions(), &stream);
        },
        observer);
  }
  void CancelStream() override {
    if (stream_context_ != nullptr) stream_context_->TryCancel();
  }

 private:
  struct DescribeCall {
    grpc::ClientContext context;
    v1::DescribeRequest request;
    v1::DescribeResponse response;
  };

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::WorkerControl::Stub> control_;
  ForwardStreamStub forward_;
  std::unique_ptr<DescribeCall> describe_;
  std::unique_ptr<grpc::ClientContext> stream_context_;
};

}  // namespace

WorkerChannelFactory GrpcChannels(const ClientSecurity& security, const Logger& logger) {
  const auto shared = std::make_shared<ChannelSecurity>(security, logger);
  return [shared](const std::string& address) {
    return std::make_unique<GrpcWorkerChannel>(address, *shared);
  };
}

}  // namespace atelier
