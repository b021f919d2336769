#include "services/gpu-frontend/frontend.h"

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "libs/base/endpoint.h"
#include "libs/testing/child_process.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "proto/compat/sglang_scheduler.grpc.pb.h"
#include "tests/integration/toy_model.h"

// The frontend's life with the real API and the real engine over a toy model.

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::atelier::testing::ReadFile;
using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::atelier::testing::ToyModel;
using ::atelier::testing::ToySpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FrontendTest : public ::testing::Test {
 protected:
  FrontendTest() {
    options_.model_path = dir_.path();
    options_.workers = {"127.0.0.1:1"};
    options_.port = 0;
    options_.metrics_address = "127.0.0.1:0";
    options_.ready_file = dir_.File("ready");
    std::ofstream(dir_.File("tokenizer.json")) << R"({"model": {}})";
    std::ofstream(dir_.File("generation_config.json")) << R"({"temperature": 0.7})";
  }

  void Start(ModelLoader loader) {
    ATELIER_ASSERT_OK(options_.Resolve());
    auto frontend = Frontend::Start(options_, std::move(loader), clock_, logger_);
    ATELIER_ASSERT_OK(frontend);
    frontend_ = std::move(frontend).value();
    stub_ = wire::SglangScheduler::NewStub(
        grpc::CreateChannel(frontend_->address(), grpc::InsecureChannelCredentials()));
  }
  void StartToy(const ToySpec& spec = ToySpec()) {
    Start([spec](const FrontendOptions& options, const LoaderContext& context) {
      return ToyModel::Load(spec, options, context);
    });
    ATELIER_ASSERT_OK(frontend_->Load());
  }

  wire::GenerateRequest Request(const std::string& id, uint32_t last_token, uint32_t max_tokens) {
    wire::GenerateRequest request;
    request.set_request_id(id);
    request.mutable_tokenized()->add_input_ids(last_token);
    request.mutable_sampling_params()->set_max_new_tokens(max_tokens);
    request.set_stream(true);
    return request;
  }

  static bool Never() { return false; }

  const TempDir dir_;
  SystemClock clock_;
  Logger logger_{Severity::kError};
  FrontendOptions options_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<wire::SglangScheduler::Stub> stub_;
};

TEST_F(FrontendTest, AnswersOnceLoadedAndSaysSo) {
  StartToy();
  EXPECT_EQ(frontend_->state(), FrontendState::kServing);
  EXPECT_EQ(ReadFile(options_.ready_file),
            absl::StrCat("listen=", frontend_->address(),
                         "\nmetrics=", frontend_->metrics_address(), "\n"));
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a", 10, 3));
  wire::GenerateResponse response;
  wire::GenerateResponse last;
  while (reader->Read(&response)) last = response;
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_THAT(last.complete().output_ids(), ElementsAre(11, 12, 13));
  EXPECT_EQ(last.complete().finish_reason(), "length");
}

TEST_F(FrontendTest, DescribesTheModelByItsOptionsAndFiles) {
  options_.served_model_name = "name";
  options_.advertised_path = "/";
  StartToy();
  grpc::ClientContext context;
  wire::GetModelInfoResponse info;
  ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.served_model_name(), "name");
  EXPECT_EQ(info.tokenizer_path(), "/");
  EXPECT_EQ(info.model_path(), "/");
  EXPECT_EQ(info.default_sampling_params_json(), R"({"temperature":0.7})");
}

TEST_F(FrontendTest, IsUnavailableWhileLoading) {
  absl::Notification waiting;
  absl::Notification let_load;
  Start([&](const FrontendOptions& options, const LoaderContext& context) {
    context.report_waiting("waiting for expert workers: worker 127.0.0.1:1 is loading");
    waiting.Notify();
    let_load.WaitForNotification();
    return ToyModel::Load(ToySpec(), options, context);
  });
  std::thread loading([this] { ATELIER_EXPECT_OK(frontend_->Load()); });
  {
    grpc::ClientContext context;
    wire::HealthCheckResponse health;
    waiting.WaitForNotification();
    const grpc::Status early = stub_->HealthCheck(&context, {}, &health);
    EXPECT_EQ(early.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(early.error_message(), HasSubstr("worker 127.0.0.1:1 is loading"));
    EXPECT_THAT(testing::HttpGet(ParseEndpoint(frontend_->metrics_address())->port, "/readyz"),
                HasSubstr("worker 127.0.0.1:1 is loading"));
  }
  let_load.Notify();
  loading.join();
  grpc::ClientContext context;
  wire::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&context, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
}

TEST_F(FrontendTest, LoadingErrorsComeBackAndStopIt) {
  Start([](const FrontendOptions&, const LoaderContext&) {
    return absl::NotFoundError("config.json is missing");
  });
  EXPECT_THAT(frontend_->Load(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json is missing")));
  EXPECT_EQ(frontend_->state(), FrontendState::kStopped);
}

TEST_F(FrontendTest, PortInUseIsFoundBeforeLoading) {
  StartToy();
  FrontendOptions second = options_;
  second.metrics_address = frontend_->metrics_address();
  EXPECT_THAT(Frontend::Start(second, nullptr, clock_, logger_).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(second.metrics_address)));
}

TEST_F(FrontendTest, DrainLetsRunningRequestsEnd) {
  ToySpec spec;
  spec.step_time = absl::Milliseconds(1);
  StartToy(spec);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("a", 10, 200));
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  std::thread draining([this] { frontend_->Drain(Never); });
  wire::GenerateResponse last;
  while (reader->Read(&response)) last = response;
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(last.complete().output_ids_size(), 200);
  draining.join();
  EXPECT_EQ(frontend_->state(), FrontendState::kStopped);
  EXPECT_EQ(ReadFile(options_.ready_file), "");
}

TEST_F(FrontendTest, ASecondSignalEndsTheDrainAtOnce) {
  ToySpec spec;
  spec.step_time = absl::Milliseconds(1);
  spec.max_context = 1 << 20;
  StartToy(spec);
  grpc::ClientContext context;
  wire::GenerateRequest request = Request("a", 10, 1 << 20);
  request.mutable_sampling_params()->set_ignore_eos(true);
  const auto reader = stub_->Generate(&context, request);
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  frontend_->Drain([] { return true; });
  while (reader->Read(&response)) continue;
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_EQ(frontend_->state(), FrontendState::kStopped);
}

}  // namespace
}  // namespace atelier
