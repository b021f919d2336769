#include "services/gpu-frontend/api/api_server.h"

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "proto/compat/sglang_scheduler.grpc.pb.h"
#include "services/gpu-frontend/api/fake_engine.h"

// The calls that Shepherd Model Gateway makes, against an engine that does what each test says:
// also the orders of events that the real gateway will not produce on demand.

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
namespace common = ::smg::grpc::common;
using ::atelier::testing::End;
using ::atelier::testing::FakeEngine;
using ::atelier::testing::StatusIs;
using ::atelier::testing::Token;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

wire::GenerateRequest Request(const std::string& id, bool stream = true, uint32_t n = 1) {
  wire::GenerateRequest request;
  request.set_request_id(id);
  request.mutable_tokenized()->add_input_ids(5);
  request.mutable_tokenized()->add_input_ids(6);
  request.mutable_sampling_params()->set_n(n);
  request.set_stream(stream);
  return request;
}

// What a stream that says nothing more ends with.
template <typename Response>
grpc::Status EndOf(grpc::ClientReader<Response>& reader) {
  Response response;
  EXPECT_FALSE(reader.Read(&response));
  return reader.Finish();
}

class ApiServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ApiServerOptions options;
    options.listen = "127.0.0.1:0";
    auto server = ApiServer::Start(options, clock_, logger_);
    ATELIER_ASSERT_OK(server);
    server_ = std::move(server).value();
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = wire::SglangScheduler::NewStub(channel_);
  }
  void TearDown() override { server_.reset(); }

  void Serve() {
    ApiBackend backend;
    backend.engine = &engine_;
    backend.model.served_model_name = "m";
    backend.model.max_context = 4096;
    backend.model.config.bos_token_id = bos_token_id_;
    backend.model.config.vocab_size = 100;
    TokenizerArchive archive;
    archive.zip = std::string(150000, 'z');
    archive.sha256 = "digest";
    backend.tokenizer = archive;
    server_->Serve(std::move(backend));
  }

  grpc::Status HealthCheck(wire::HealthCheckResponse* response) {
    grpc::ClientContext context;
    return stub_->HealthCheck(&context, wire::HealthCheckRequest(), response);
  }
  bool Abort(const std::string& id) {
    grpc::ClientContext context;
    wire::AbortRequest request;
    wire::AbortResponse response;
    request.set_request_id(id);
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
    return response.success();
  }
  // A unary call of any method with encoded messages; the answer's bytes.
  grpc::Status RawCall(const std::string& method, const std::string& request, std::string* answer) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    const grpc::Slice slice(request);
    const grpc::ByteBuffer input(&slice, 1);
    grpc::ByteBuffer output;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &input, &output, [&](grpc::Status s) {
      status = std::move(s);
      done.Notify();
    });
    done.WaitForNotification();
    grpc::Slice whole;
    if (status.ok() && output.TrySingleSlice(&whole).ok()) {
      answer->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
    }
    return status;
  }
  // grpc.health.v1: the encoded request is field 1 (service), the answer field 1 (status).
  int StandardHealth(const std::string& service) {
    std::string request;
    if (!service.empty()) {
      request = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    }
    std::string answer;
    const grpc::Status status = RawCall("/grpc.health.v1.Health/Check", request, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return answer.size() == 2 ? answer[1] : -1;
  }

  SystemClock clock_;
  Logger logger_{Severity::kError};
  FakeEngine engine_;
  int64_t bos_token_id_ = 1;
  std::unique_ptr<ApiServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<wire::SglangScheduler::Stub> stub_;
};

constexpr int kServing = 1;
constexpr int kNotServing = 2;
constexpr char kService[] = "sglang.grpc.scheduler.SglangScheduler";

TEST_F(ApiServerTest, HealthFollowsLoadingServingDraining) {
  wire::HealthCheckResponse response;
  EXPECT_EQ(HealthCheck(&response).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(StandardHealth(""), kNotServing);
  EXPECT_EQ(StandardHealth(kService), kNotServing);
  Serve();
  EXPECT_TRUE(HealthCheck(&response).ok());
  EXPECT_TRUE(response.healthy());
  EXPECT_EQ(StandardHealth(""), kServing);
  EXPECT_EQ(StandardHealth(kService), kServing);
  server_->Drain();
  EXPECT_TRUE(HealthCheck(&response).ok());
  EXPECT_FALSE(response.healthy());
  EXPECT_EQ(StandardHealth(""), kNotServing);
  EXPECT_EQ(StandardHealth(kService), kNotServing);
}

TEST_F(ApiServerTest, NothingIsAnsweredWhileLoading) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  wire::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  grpc::ClientContext tokenizer_context;
  const auto tokenizer = stub_->GetTokenizer(&tokenizer_context, common::GetTokenizerRequest());
  common::GetTokenizerChunk chunk;
  EXPECT_FALSE(tokenizer->Read(&chunk));
  EXPECT_EQ(tokenizer->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ApiServerTest, OtherEnginesServicesAndMissingMethodsAreUnimplemented) {
  Serve();
  std::string answer;
  for (const char* method :
       {"/vllm.grpc.engine.VllmEngine/HealthCheck", "/trtllm.TrtllmService/HealthCheck",
        "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/HealthCheck",
        "/mlx.grpc.engine.MlxEngine/HealthCheck"}) {
    EXPECT_EQ(RawCall(method, "", &answer).error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
}

TEST_F(ApiServerTest, ABeginningBeyondTheVocabularyStartsNoPrompt) {
  bos_token_id_ = 100;
  Serve();
  wire::GenerateRequest request = Request("a");
  request.mutable_tokenized()->clear_input_ids();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  const grpc::Status status = EndOf(*reader);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("no beginning-of-sequence token"));
}

TEST_F(ApiServerTest, WhatIsNotSupportedIsNamed) {
  Serve();
  std::string answer;
  for (const auto& [method, what] :
       {std::pair("SubscribeKvEvents", "KV events"), std::pair("Embed", "embeddings"),
        std::pair("StartProfile", "profiling"), std::pair("StopProfile", "profiling"),
        std::pair("LoadLoRAAdapter", "LoRA"), std::pair("UnloadLoRAAdapter", "LoRA"),
        std::pair("ListLoadedLoRAAdapters", "LoRA")}) {
    const std::string path = absl::StrCat("/sglang.grpc.scheduler.SglangScheduler/", method);
    const grpc::Status status = RawCall(path.c_str(), "", &answer);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr(what)) << method;
  }
}

TEST_F(ApiServerTest, InfoLoadsAndFlushCacheAnswer) {
  Serve();
  {
    grpc::ClientContext context;
    wire::GetModelInfoResponse info;
    ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.served_model_name(), "m");
  }
  {
    grpc::ClientContext context;
    wire::GetServerInfoResponse info;
    ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.server_type(), "grpc");
  }
  {
    grpc::ClientContext context;
    wire::GetLoadsResponse loads;
    ASSERT_TRUE(stub_->GetLoads(&context, {}, &loads).ok());
    EXPECT_EQ(loads.loads_size(), 1);
  }
  grpc::ClientContext context;
  common::FlushCacheResponse flushed;
  ASSERT_TRUE(stub_->FlushCache(&context, {}, &flushed).ok());
  EXPECT_TRUE(flushed.success());
}

TEST_F(ApiServerTest, TokenizerComesInSmallChunksWithTheDigestOnTheLast) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->GetTokenizer(&context, common::GetTokenizerRequest());
  common::GetTokenizerChunk chunk;
  std::vector<size_t> sizes;
  std::vector<std::string> digests;
  while (reader->Read(&chunk)) {
    sizes.push_back(chunk.data().size());
    digests.push_back(chunk.sha256());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(sizes, ElementsAre(65536, 65536, 18928));
  EXPECT_THAT(digests, ElementsAre("", "", "digest"));
}

TEST_F(ApiServerTest, StreamsTokensAsTheyCome) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  wire::GenerateResponse response;
  for (int i = 0; i < 3; ++i) {
    engine_.Emit("a", Token(0, 10 + i, i + 1));
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_THAT(response.chunk().token_ids(), ElementsAre(static_cast<uint32_t>(10 + i)));
  }
  engine_.Emit("a", End(0, 4));
  engine_.Forget("a");
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_THAT(response.complete().output_ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(response.complete().matched_token_id(), 2u);
  EXPECT_TRUE(EndOf(*reader).ok());
  EXPECT_EQ(engine_.aborts("a"), 0);
}

TEST_F(ApiServerTest, UnaryWithTwoSequencesEndsWithTwoCompletesInOrder) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a", /*stream=*/false, /*n=*/2));
  engine_.AwaitSubmitted("a");
  engine_.Emit("a", Token(1, 21, 1));
  engine_.Emit("a", End(1, 2));
  engine_.Emit("a", Token(0, 11, 1));
  engine_.Emit("a", End(0, 2));
  std::vector<uint32_t> indices;
  wire::GenerateResponse response;
  while (reader->Read(&response)) {
    ASSERT_TRUE(response.has_complete());
    indices.push_back(response.complete().index());
    EXPECT_EQ(response.complete().output_ids(0), indices.back() == 0 ? 11u : 21u);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(indices, ElementsAre(0, 1));
}

TEST_F(ApiServerTest, RefusalsAreStatusesAloneAndDoNotReachTheEngine) {
  Serve();
  wire::GenerateRequest request = Request("a");
  request.mutable_sampling_params()->set_json_schema("{}");
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  wire::GenerateResponse response;
  const grpc::Status status = EndOf(*reader);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("json_schema"));
  EXPECT_FALSE(Abort("a"));
}

TEST_F(ApiServerTest, DuplicateIdIsRefusedAndItsCancelSparesTheFirst) {
  Serve();
  grpc::ClientContext first_context;
  const auto first = stub_->Generate(&first_context, Request("a"));
  engine_.AwaitSubmitted("a");
  {
    grpc::ClientContext context;
    const auto second = stub_->Generate(&context, Request("a"));
    wire::GenerateResponse response;
    EXPECT_FALSE(second->Read(&response));
    EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
    context.TryCancel();
  }
  engine_.Emit("a", Token(0, 10, 1));
  engine_.Emit("a", End(0, 2));
  wire::GenerateResponse response;
  EXPECT_TRUE(first->Read(&response));
  EXPECT_TRUE(first->Read(&response));
  EXPECT_TRUE(first->Finish().ok());
  EXPECT_EQ(engine_.aborts("a"), 0);
}

TEST_F(ApiServerTest, CancelInPrefillAbortsTheRequest) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  context.TryCancel();
  engine_.AwaitAbort("a");
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ApiServerTest, CancelAndAbortTogetherInEitherOrder) {
  Serve();
  for (const bool cancel_first : {true, false}) {
    const std::string id = cancel_first ? "a" : "b";
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, Request(id));
    engine_.AwaitSubmitted(id);
    engine_.Emit(id, Token(0, 10, 1));
    wire::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    if (cancel_first) {
      context.TryCancel();
      engine_.AwaitAbort(id);
      EXPECT_FALSE(Abort(id));
    } else {
      EXPECT_TRUE(Abort(id));
      context.TryCancel();
    }
    while (reader->Read(&response)) continue;
    reader->Finish();
  }
}

TEST_F(ApiServerTest, AbortByAThirdPartyEndsTheStreamWithFinishReasonAbort) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  engine_.Emit("a", Token(0, 10, 1));
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(Abort("a"));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.complete().finish_reason(), "abort");
  EXPECT_THAT(response.complete().output_ids(), ElementsAre(10));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_FALSE(Abort("a"));
}

TEST_F(ApiServerTest, EngineErrorEndsTheStreamWithItsStatus) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  engine_.Emit("a", Token(0, 10, 1));
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  engine_.EndWith("a", absl::UnavailableError("worker 127.0.0.1:7 is gone"));
  const grpc::Status status = EndOf(*reader);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("127.0.0.1:7"));
}

TEST_F(ApiServerTest, AReaderThatStopsReadingNeverHoldsUpTheEngine) {
  Serve();
  wire::GenerateRequest request = Request("a");
  request.set_return_logprob(true);
  request.set_top_logprobs_num(20);
  request.set_logprob_start_len(-1);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  engine_.AwaitSubmitted("a");
  constexpr int kTokens = 50000;  // about 10 MB: far beyond every flow-control window
  for (int i = 0; i < kTokens; ++i) {
    TokenDelta delta = Token(0, i, i + 1);
    TokenLogprob logprob;
    logprob.token = i;
    logprob.logprob = -1.0f;
    for (int k = 0; k < 20; ++k) logprob.top.emplace_back(k, -2.0f);
    delta.logprobs = {logprob};
    engine_.Emit("a", std::move(delta));
  }
  engine_.Emit("a", End(0, kTokens + 1));
  engine_.AwaitDelivered();
  uint32_t next = 0;
  wire::GenerateResponse response;
  while (reader->Read(&response) && response.has_chunk()) {
    EXPECT_LT(response.ByteSizeLong(), size_t{4} << 20);
    for (const uint32_t token : response.chunk().token_ids()) EXPECT_EQ(token, next++);
  }
  EXPECT_EQ(next, static_cast<uint32_t>(kTokens));
  EXPECT_EQ(response.complete().output_ids_size(), kTokens);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ApiServerTest, AReaderThatGoesAwayWhileBehindAbortsToo) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  for (int i = 0; i < 200000; ++i) engine_.Emit("a", Token(0, 1 << 30, i + 1));
  context.TryCancel();
  engine_.AwaitAbort("a");
  engine_.AwaitDelivered();
  reader->Finish();
}

TEST_F(ApiServerTest, ShutdownCancelsWhatDoesNotEndInTime) {
  Serve();
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a"));
  engine_.AwaitSubmitted("a");
  server_->Shutdown(absl::Milliseconds(1));
  engine_.AwaitAbort("a");
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(ApiServerTest, PortInUseIsAnErrorThatNamesIt) {
  ApiServerOptions options;
  options.listen = absl::StrCat("127.0.0.1:", server_->port());
  EXPECT_THAT(ApiServer::Start(options, clock_, logger_).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(options.listen)));
}

// Clients that cancel at any moment, among them before the engine has the request: at the end no
// request may be left in the engine.
TEST_F(ApiServerTest, CancelsAtRandomMomentsLeaveNothingBehind) {
  Serve();
  const auto client = [this](int number) {
    std::minstd_rand random(static_cast<unsigned>(number) + 1);  // seed = client number + 1
    for (int i = 0; i < 50; ++i) {
      const std::string id = absl::StrCat(number, "-", i);
      grpc::ClientContext context;
      const auto reader = stub_->Generate(&context, Request(id, random() % 2 == 0));
      for (auto spin = random() % 2000; spin > 0; --spin) engine_.Emit(id, Token(0, 7, 1));
      context.TryCancel();
      reader->Finish();
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) clients.emplace_back(client, i);
  for (std::thread& thread : clients) thread.join();
  server_->Shutdown(absl::Seconds(30));
  engine_.AwaitDelivered();
  EXPECT_TRUE(engine_.FlushCache());  // true only when no request is in flight
}

}  // namespace
}  // namespace atelier
