#include "tests/e2e/faults/stream_client.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "libs/transport/status_codes.h"
#include "proto/compat/sglang_scheduler.grpc.pb.h"

namespace atelier::faults {
namespace {

namespace wire = ::sglang::grpc::scheduler;

constexpr auto kTimeout = std::chrono::seconds(60);

wire::GenerateRequest ToWire(const StreamRequest& request, const std::string& id) {
  wire::GenerateRequest message;
  message.set_request_id(id);
  message.mutable_tokenized()->mutable_input_ids()->Add(request.prompt.begin(),
                                                        request.prompt.end());
  wire::SamplingParams* sampling = message.mutable_sampling_params();
  sampling->set_max_new_tokens(request.max_new_tokens);
  sampling->set_temperature(request.temperature);
  sampling->set_ignore_eos(request.ignore_eos);
  if (request.temperature > 0) {
    (*sampling->mutable_custom_params()->mutable_fields())["seed"].set_number_value(request.seed);
  }
  message.set_stream(true);
  message.set_return_logprob(true);
  return message;
}

class GrpcStreamClient final : public StreamClient {
 public:
  explicit GrpcStreamClient(const std::string& address) {
    grpc::ChannelArguments arguments;
    // Clients of one frontend do not share a connection, as users' clients do not.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = wire::SglangScheduler::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  Sequence Generate(const StreamRequest& request, const std::string& id,
                    const std::function<StreamStep()>& on_token) override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    const auto reader = stub_->Generate(&context, ToWire(request, id));
    Sequence sequence;
    StreamStep step = StreamStep::kReadOn;
    wire::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_complete()) {
        sequence.finished = response.complete().finish_reason() != "abort";
        continue;
      }
      const wire::GenerateStreamChunk& chunk = response.chunk();
      sequence.tokens.insert(sequence.tokens.end(), chunk.token_ids().begin(),
                             chunk.token_ids().end());
      const auto& logprobs = chunk.output_logprobs().token_logprobs();
      sequence.logprobs.insert(sequence.logprobs.end(), logprobs.begin(), logprobs.end());
      if (step != StreamStep::kReadOn) continue;
      step = on_token();
      if (step == StreamStep::kHangUp) context.TryCancel();
      if (step == StreamStep::kAbort) Abort(id);
    }
    sequence.status = FromGrpcStatus(reader->Finish());
    return sequence;
  }

 private:
  void Abort(const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    wire::AbortRequest request;
    request.set_request_id(id);
    wire::AbortResponse response;
    stub_->Abort(&context, request, &response);  // the stream's end says what came of it
  }

  std::unique_ptr<wire::SglangScheduler::Stub> stub_;
};

}  // namespace

std::unique_ptr<StreamClient> StreamClient::Create(const std::string& address) {
  return std::make_unique<GrpcStreamClient>(address);
}

}  // namespace atelier::faults
