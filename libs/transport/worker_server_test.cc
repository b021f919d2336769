#include "libs/transport/worker_server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/codec.h"
#include "libs/transport/forward_stream.h"
#include "libs/transport/grpc_deadline.h"
#include "libs/transport/status_codes.h"
#include "proto/atelier/v1/control.grpc.pb.h"
#include "proto/atelier/v1/expert.grpc.pb.h"

namespace atelier {
namespace {

using ::atelier::testing::FakeDescription;
using ::atelier::testing::FakeServerOptions;
using ::atelier::testing::FakeWorker;
using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

// One row of H = 16 for FakeDescription's worker.
v1::ForwardRequest OneRow(uint64_t id) {
  v1::ForwardRequest message;
  message.set_id(id);
  message.set_num_tokens(1);
  message.set_top_k(1);
  message.set_dtype(v1::DTYPE_BF16);
  message.set_hidden(std::string(32, '\x3f'));
  message.set_expert_ids(std::string(4, '\0'));
  message.set_router_weights(std::string("\0\0\x80\x3f", 4));
  return message;
}

std::string ToText(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

grpc::ByteBuffer FromText(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATELIER_ASSERT_OK_AND_ASSIGN(server_, Start({"127.0.0.1:0"}));
    channel_ = grpc::CreateChannel(server_->Addresses()[0], grpc::InsecureChannelCredentials());
    experts_ = v1::ExpertService::NewStub(channel_);
    control_ = v1::WorkerControl::NewStub(channel_);
  }
  void TearDown() override { worker_.Release(); }

  absl::StatusOr<std::unique_ptr<WorkerServer>> Start(std::vector<std::string> listen) {
    WorkerServerOptions options = FakeServerOptions(worker_.Describe(), "");
    options.listen = std::move(listen);
    return WorkerServer::Start(options, worker_, clock_, logger_);
  }
  absl::Status Forward(const v1::ForwardRequest& request, v1::ForwardResponse* response,
                       absl::Duration timeout = kPatience) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpcDeadline(timeout));
    return FromGrpcStatus(experts_->Forward(&context, request, response));
  }
  // The status byte of grpc.health.v1's answer: 1 serving, 2 not; the protocol's field 1 both ways.
  absl::StatusOr<int> Health(const std::string& service) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(ToGrpcDeadline(kPatience));
    const std::string length(1, static_cast<char>(service.size()));
    const grpc::ByteBuffer request = FromText(service.empty() ? "" : "\x0a" + length + service);
    grpc::ByteBuffer response;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                   [&](grpc::Status result) {
                     status = std::move(result);
                     done.Notify();
                   });
    done.WaitForNotification();
    if (!status.ok()) return FromGrpcStatus(status);
    const std::string text = ToText(response);
    return text.size() == 2 ? text[1] : -1;
  }

  testing::TempDir directory_;
  SystemClock clock_;
  Logger logger_{Severity::kError};
  FakeWorker worker_{FakeDescription()};
  std::unique_ptr<WorkerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ExpertService::Stub> experts_;
  std::unique_ptr<v1::WorkerControl::Stub> control_;
};

TEST_F(ServerTest, AnswersSimpleClients) {
  v1::ForwardResponse response;
  ATELIER_ASSERT_OK(Forward(OneRow(3), &response));
  EXPECT_EQ(response.id(), 3u);
  ASSERT_EQ(response.sums_size(), 1);
  EXPECT_EQ(response.sums(0).data().size(), 64u);
}

TEST_F(ServerTest, SimpleClientsSeeErrorsAsTheStatusOfTheCall) {
  v1::ForwardResponse response;
  v1::ForwardRequest bad = OneRow(3);
  bad.set_top_k(2);
  EXPECT_THAT(Forward(bad, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expert_ids has 4 bytes")));
  bad = OneRow(3);
  bad.set_epoch(5);
  EXPECT_THAT(Forward(bad, &response),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch=5")));
}

TEST_F(ServerTest, AUnaryCallEndsAtItsDeadlineAndIsCancelled) {
  worker_.Hold();
  v1::ForwardResponse response;
  EXPECT_THAT(Forward(OneRow(1), &response, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::_));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  EXPECT_TRUE(worker_.AwaitCancelled());
}

TEST_F(ServerTest, PassesChangesOfShardsOn) {
  const auto load = [this](uint32_t expert_end) {
    grpc::ClientContext context;
    v1::LoadRequest request;
    v1::Shard* shard = request.add_shards();
    shard->set_expert_end(expert_end);
    shard->set_slice_count(1);
    v1::LoadResponse response;
    return FromGrpcStatus(control_->Load(&context, request, &response));
  };
  EXPECT_THAT(load(9), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expert_end=9")));
  // The fake worker cannot.
  EXPECT_THAT(load(8), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("was started with")));
  grpc::ClientContext context;
  v1::UnloadResponse response;
  EXPECT_THAT(FromGrpcStatus(control_->Unload(&context, {}, &response)),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("was started with")));
}

TEST_F(ServerTest, DescribesAndDrains) {
  grpc::ClientContext context;
  v1::DescribeResponse described;
  ATELIER_ASSERT_OK(FromGrpcStatus(control_->Describe(&context, {}, &described)));
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription description, DecodeDescription(described));
  EXPECT_EQ(description.shards, FakeDescription().shards);

  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext drain_context;
    v1::DrainResponse drained;
    ATELIER_ASSERT_OK(FromGrpcStatus(control_->Drain(&drain_context, {}, &drained)));
  }
  v1::ForwardResponse response;
  EXPECT_THAT(Forward(OneRow(1), &response),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
}

TEST_F(ServerTest, HealthFollowsSetServing) {
  for (const bool serving : {false, true, false}) {
    server_->SetServing(serving);
    for (const std::string name : {"", "atelier.v1.ExpertService", "atelier.v1.WorkerControl"}) {
      ATELIER_ASSERT_OK_AND_ASSIGN(const int status, Health(name));
      EXPECT_EQ(status, serving ? 1 : 2) << name;
    }
  }
  EXPECT_THAT(Health("nonsense"), StatusIs(absl::StatusCode::kNotFound, ::testing::_));
}

TEST_F(ServerTest, HealthBeginsAsNotServing) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const int status, Health(""));
  EXPECT_EQ(status, 2);
}

TEST_F(ServerTest, ReflectionListsTheServices) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto completes = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  ASSERT_TRUE(completes());
  stream->Write(FromText(std::string("\x3a\x00", 2)), nullptr);  // list_services = ""
  ASSERT_TRUE(completes());
  grpc::ByteBuffer response;
  stream->Read(&response, nullptr);
  ASSERT_TRUE(completes());
  EXPECT_THAT(ToText(response), HasSubstr("atelier.v1.ExpertService"));
  EXPECT_THAT(ToText(response), HasSubstr("atelier.v1.WorkerControl"));
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  completes();
}

TEST_F(ServerTest, TheHandlerHearsOfCallsThatWereRefusedBeforeItSawThem) {
  v1::ForwardRequest bad = OneRow(1);
  bad.set_top_k(0);
  v1::ForwardResponse response;
  EXPECT_THAT(Forward(bad, &response), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  stream->Write(bad);
  ASSERT_TRUE(stream->Read(&response));
  stream->WritesDone();
  ATELIER_EXPECT_OK(FromGrpcStatus(stream->Finish()));
  EXPECT_THAT(worker_.refused(), ::testing::ElementsAre(absl::StatusCode::kInvalidArgument,
                                                        absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(worker_.calls(), 0);
}

TEST_F(ServerTest, AnIdInFlightIsRefused) {
  worker_.Hold();
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  stream->Write(OneRow(7));
  stream->Write(OneRow(7));
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 7u);
  EXPECT_THAT(FromWireStatus(response.status()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("id=7 is still in flight")));
  worker_.Release();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_status());
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  ATELIER_EXPECT_OK(FromGrpcStatus(stream->Finish()));
}

TEST_F(ServerTest, AHalfClosedStreamStillGetsItsAnswers) {
  worker_.Hold();
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  stream->Write(OneRow(1));
  stream->WritesDone();
  ASSERT_TRUE(worker_.AwaitCalls(1));
  worker_.Release();
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 1u);
  EXPECT_FALSE(stream->Read(&response));
  ATELIER_EXPECT_OK(FromGrpcStatus(stream->Finish()));
}

TEST_F(ServerTest, AStreamOfAnotherProtocolIsRefusedAndOthersGoOn) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&context, "/atelier.v1.ExpertService/ForwardStream", &queue);
  stream->StartCall(nullptr);
  ASSERT_TRUE(next());
  stream->Write(FromText("GET / HTTP/1.1"), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  EXPECT_FALSE(next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_THAT(FromGrpcStatus(status),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no ForwardRequest")));
  queue.Shutdown();

  v1::ForwardResponse response;
  ATELIER_EXPECT_OK(Forward(OneRow(1), &response));
}

TEST_F(ServerTest, AStreamIsNotReadBeyondItsCredit) {
  constexpr int kRequests = kMaxCallsPerStream + 200;
  worker_.Hold();
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  for (int i = 1; i <= kRequests; ++i) ASSERT_TRUE(stream->Write(OneRow(static_cast<uint64_t>(i))));
  ASSERT_TRUE(worker_.AwaitCalls(kMaxCallsPerStream));
  ATELIER_EXPECT_OK(Health(""));  // a round trip in which an unbounded server would read on
  EXPECT_EQ(worker_.calls(), kMaxCallsPerStream);
  worker_.Release();
  v1::ForwardResponse response;
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream->Read(&response));
  stream->WritesDone();
  ATELIER_EXPECT_OK(FromGrpcStatus(stream->Finish()));
}

TEST_F(ServerTest, ShutdownLetsCallsInFlightFinish) {
  worker_.Hold();
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  stream->Write(OneRow(1));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  std::thread shutdown([this] { server_->Shutdown(kPatience); });
  worker_.Release();
  v1::ForwardResponse response;
  EXPECT_TRUE(stream->Read(&response));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_THAT(FromGrpcStatus(stream->Finish()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  shutdown.join();
  server_->Shutdown(absl::ZeroDuration());  // again: nothing
}

TEST_F(ServerTest, ShutdownCancelsWhatOutlivesTheGrace) {
  worker_.Hold();
  grpc::ClientContext context;
  const auto stream = experts_->ForwardStream(&context);
  stream->Write(OneRow(1));
  ASSERT_TRUE(worker_.AwaitCalls(1));
  server_->Shutdown(absl::Milliseconds(10));
  EXPECT_TRUE(worker_.AwaitCancelled());
  v1::ForwardResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(ServerTest, ListensOnSeveralAddresses) {
  const std::string path = "unix:" + directory_.File("a.sock");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto server, Start({"127.0.0.1:0", path, "localhost:0"}));
  ASSERT_EQ(server->Addresses().size(), 3u);
  EXPECT_THAT(server->Addresses()[0], HasSubstr("127.0.0.1:"));
  EXPECT_FALSE(absl::EndsWith(server->Addresses()[0], ":0"));
  EXPECT_EQ(server->Addresses()[1], path);
}

TEST_F(ServerTest, AStaleSocketFileIsReplacedAndALiveOneIsNot) {
  const std::string path = directory_.File("worker.sock");
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(fd);  // as a killed worker leaves it
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto server, Start({"unix:" + path}));
  EXPECT_THAT(Start({"unix:" + path}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another server listens there")));
}

TEST_F(ServerTest, AFileThatIsNoSocketIsLeftAlone) {
  const std::string path = directory_.File("notes.txt");
  std::ofstream(path) << "dear";
  EXPECT_THAT(Start({"unix:" + path}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no socket")));
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "dear");
}

TEST_F(ServerTest, AnAddressThatCannotBeBoundIsNamedWithTheReason) {
  const std::string taken = server_->Addresses()[0];
  EXPECT_THAT(Start({taken}), StatusIs(absl::StatusCode::kUnavailable,
                                       AllOf(HasSubstr(taken), HasSubstr("in use"))));
  EXPECT_THAT(Start({"127.0.0.1:0", "unix:/nonexistent/folder/a.sock"}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("/nonexistent/folder"), HasSubstr("No such file"))));
  EXPECT_THAT(Start({"nonsense"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
  EXPECT_THAT(Start({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("listen")));
}

TEST_F(ServerTest, OptionsAreChecked) {
  const auto refused = [&](auto change) {
    WorkerServerOptions options = FakeServerOptions(worker_.Describe(), "127.0.0.1:0");
    change(options);
    return WorkerServer::Start(options, worker_, clock_, logger_).status();
  };
  EXPECT_THAT(refused([](auto& o) { o.hidden_size = 0; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hidden_size=0")));
  EXPECT_THAT(refused([](auto& o) { o.num_experts = -1; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_experts=-1")));
  EXPECT_THAT(refused([](auto& o) { o.max_message_bytes = 0; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_message_bytes=0")));
  EXPECT_THAT(refused([](auto& o) { o.default_timeout = absl::ZeroDuration(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("default_timeout")));
}

}  // namespace
}  // namespace atelier
