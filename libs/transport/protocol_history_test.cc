// Peers of the build before this one, played with the bytes that it sent, and peers of a later one.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/codec.h"
#include "libs/transport/encoded_forward.h"
#include "libs/transport/recorded_messages.h"
#include "libs/transport/shm_codec.h"
#include "libs/transport/shm_frames.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/status_codes.h"
#include "libs/transport/worker_connection.h"
#include "libs/transport/worker_server.h"
#include "proto/atelier/v1/control.grpc.pb.h"
#include "proto/atelier/v1/expert.grpc.pb.h"

namespace atelier {
namespace {

using ::atelier::testing::FakeWorker;
using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

// The worker that was recorded.
WorkerDescription OldDescription() {
  WorkerDescription description = testing::FakeDescription();
  description.hidden_size = 4;
  return description;
}

// The call that was recorded.
struct OldCall {
  OldCall() {
    for (int i = -3; i <= 4; ++i) rows.push_back(ToBFloat16(static_cast<float>(i)));
    encoding.layer = 2;
    encoding.batch = {2, 4, rows.data()};
    encoding.routing = {2, 2, ids.data(), weights.data()};
    encoding.model_digest = "d1";
    encoding.priority = CallPriority::kPrefill;
  }
  // The sums of the worker that was recorded.
  std::string Sums() const {
    ForwardRequest request;
    request.layer = encoding.layer;
    request.batch = encoding.batch;
    request.routing = encoding.routing;
    return FakeWorker::Compute(OldDescription(), request).sums.at(0).data;
  }
  std::vector<BFloat16> rows;
  std::vector<int32_t> ids = {0, 7, -1, 3};
  std::vector<float> weights = {0.5f, 0.25f, 0.0f, 1.5f};
  ForwardEncoding encoding;
};

template <typename Message>
Message Parsed(absl::string_view hex) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(recorded::Bytes(hex)));
  // So what is sent is what was recorded, but for the order of its fields.
  EXPECT_EQ(message.ByteSizeLong(), hex.size() / 2);
  return message;
}

// A worker of this build that offers what the old one did not have.
class NewWorkerTest : public ::testing::Test {
 protected:
  NewWorkerTest() : worker_(Description()) {
    server_ = WorkerServer::Start(testing::FakeServerOptions(Description(), "127.0.0.1:0"), worker_,
                                  clock_, logger_)
                  .value();
    server_->SetServing(true);
    channel_ = grpc::CreateChannel(server_->Addresses()[0], grpc::InsecureChannelCredentials());
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  }
  static WorkerDescription Description() {
    WorkerDescription description = OldDescription();
    description.quantized_rows = ActivationForm::kInt8Row;
    return description;
  }

  SystemClock clock_;
  Logger logger_{Severity::kError};
  FakeWorker worker_;
  std::unique_ptr<WorkerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
};

TEST_F(NewWorkerTest, AnswersTheStreamOfAnOldClient) {
  const auto stub = v1::ExpertService::NewStub(channel_);
  const auto stream = stub->ForwardStream(&context_);
  v1::ForwardRequest request = Parsed<v1::ForwardRequest>(recorded::kForwardRequest);
  request.set_timeout_us(60'000'000);  // of the machine that this test runs on
  ASSERT_TRUE(stream->Write(request));
  v1::ForwardResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_status()) << response.status().message();
  EXPECT_EQ(response.id(), 9u);
  ASSERT_EQ(response.sums_size(), 1);
  EXPECT_EQ(response.sums(0).data(), OldCall().Sums());
  EXPECT_EQ(worker_.last_form(), ActivationForm::kBf16);
  ASSERT_TRUE(stream->Write(Parsed<v1::ForwardRequest>(recorded::kCancel)));
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(NewWorkerTest, DescribesToAnOldClientAllThatItKnows) {
  v1::DescribeResponse response;
  ASSERT_TRUE(v1::WorkerControl::NewStub(channel_)->Describe(&context_, {}, &response).ok());
  response.clear_quantized_dtypes();  // which it passes over
  EXPECT_EQ(absl::BytesToHexString(response.SerializeAsString()), recorded::kDescribeResponse);
}

TEST_F(NewWorkerTest, TellsAClientOfALaterProtocolThatItDoesNotKnowTheCall) {
  grpc::GenericStub stub(channel_);
  const std::string bytes = recorded::Bytes(recorded::kForwardRequest);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  absl::Status status;
  stub.UnaryCall(&context_, "/atelier.v2.ExpertService/Forward", {}, &request, &response,
                 [&](grpc::Status result) {
                   status = FromGrpcStatus(result);
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                               HasSubstr("is it an Atelier service of this version?")));
}

// What the old worker answers, in its own bytes; keeps what it was asked.
class OldWorker final : public v1::ExpertService::Service, public v1::WorkerControl::Service {
 public:
  OldWorker() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::ExpertService::Service*>(this));
    builder.RegisterService(static_cast<v1::WorkerControl::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~OldWorker() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    *response = Parsed<v1::DescribeResponse>(recorded::kDescribeResponse);
    return grpc::Status::OK;
  }
  grpc::Status ForwardStream(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream) override {
    stream->SendInitialMetadata();
    v1::ForwardRequest request;
    for (int calls = 0; stream->Read(&request); ++calls) {
      auto response = Parsed<v1::ForwardResponse>(calls == 0 ? recorded::kForwardResponse
                                                             : recorded::kFailedResponse);
      response.set_id(request.id());
      // The sender's choice.
      request.set_id(9);
      request.set_timeout_us(1500);
      {
        absl::MutexLock lock(&mutex_);
        asked_ = request.SerializeAsString();
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  absl::Mutex mutex_;
  std::string asked_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

TEST(OldWorkerTest, IsAskedAsItWasBeforeAndUnderstood) {
  OldWorker worker;
  SystemClock clock;
  const Logger logger(Severity::kError);
  absl::Notification usable;
  const auto connection =
      WorkerConnection::Create(worker.address(), clock, logger, [&](const auto& state) {
        if (state.ok() && !usable.HasBeenNotified()) usable.Notify();
      });
  ASSERT_TRUE(usable.WaitForNotificationWithTimeout(kPatience));
  const OldCall call;
  const auto ask = [&] {
    absl::Notification done;
    ForwardReply reply;
    const auto in_flight = connection->Forward(EncodeForward(call.encoding),
                                               clock.Now() + kPatience, [&](ForwardReply answer) {
                                                 reply = std::move(answer);
                                                 done.Notify();
                                               });
    done.WaitForNotification();
    return reply;
  };
  const ForwardReply reply = ask();
  ATELIER_ASSERT_OK(reply.status);
  EXPECT_EQ(worker.asked(),
            Parsed<v1::ForwardRequest>(recorded::kForwardRequest).SerializeAsString());
  ASSERT_EQ(reply.sums.size(), 1u);
  EXPECT_EQ(reply.sums[0].data, std::string(32, '\x3f'));
  EXPECT_EQ(reply.queued, absl::Microseconds(3));
  EXPECT_EQ(reply.computed, absl::Microseconds(40));
  EXPECT_EQ(reply.non_finite_tokens, 1);
  EXPECT_THAT(ask().status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch=5")));
}

// One end of a connection to a worker's shared memory.
class ShmPeerTest : public ::testing::Test {
 protected:
  ShmPeerTest() {
    options_.path = directory_.File("shm.sock");
    options_.hidden_size = 4;
    options_.num_experts = 8;
    options_.top_k = 2;
    server_ = ShmWorkerServer::Start(options_, worker_, clock_, logger_).value();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, options_.path.c_str());
    socket_ = OwnedFd(::socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  void Send(std::string bytes) {
    ASSERT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  absl::StatusOr<ShmFrame> Receive() {
    absl::Status status;
    while (true) {
      if (std::optional<ShmFrame> frame = frames_.Next()) return *std::move(frame);
      if (!status.ok()) return status;
      status = frames_.Read(socket_.get());
    }
  }

  testing::TempDir directory_;
  SystemClock clock_;
  Logger logger_{Severity::kError};
  FakeWorker worker_{OldDescription()};
  ShmServerOptions options_;
  std::unique_ptr<ShmWorkerServer> server_;
  OwnedFd socket_;
  ShmFrameReader frames_{1 << 20};
};

TEST_F(ShmPeerTest, AnOldClientIsDescribedToAndGetsItsMemory) {
  Send(recorded::Bytes(recorded::kShmDescribe));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ShmFrame description, Receive());
  EXPECT_EQ(description.type, ShmFrameType::kDescription);
  EXPECT_EQ(absl::BytesToHexString(description.body), recorded::kDescribeResponse);
  Send(recorded::Bytes(recorded::kShmOpen));
  ATELIER_ASSERT_OK_AND_ASSIGN(const ShmFrame segment, Receive());
  EXPECT_EQ(segment.type, ShmFrameType::kSegment);
  EXPECT_TRUE(segment.fd.valid());
  ATELIER_EXPECT_OK(DecodeOpening(segment.body));
}

TEST_F(ShmPeerTest, AClientOfALaterProtocolIsToldSo) {
  std::string later = recorded::Bytes(recorded::kShmDescribe);
  later[4] = 2;
  Send(later);
  ATELIER_ASSERT_OK_AND_ASSIGN(const ShmFrame answer, Receive());
  ASSERT_EQ(answer.type, ShmFrameType::kRefused);
  const std::string said = Parsed<v1::Status>(absl::BytesToHexString(answer.body)).message();
  EXPECT_THAT(said, HasSubstr("the peer speaks version 2 of the protocol, this side 1"));
  EXPECT_THAT(Receive().status(), StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
}

TEST_F(ShmPeerTest, AWorkerOfALaterProtocolIsRefused) {
  std::string later = recorded::Bytes(recorded::kShmDescribe);
  later[4] = 2;
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const OwnedFd ours(ends[0]), theirs(ends[1]);
  ASSERT_EQ(::send(theirs.get(), later.data(), later.size(), 0),
            static_cast<ssize_t>(later.size()));
  EXPECT_THAT(frames_.Read(ours.get()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("run the same release")));
}

TEST(ShmSlots, HoldTheBytesThatTheyHeldBefore) {
  const OldCall call;
  std::string payload(4096, '\0');
  const absl::Span<uint8_t> room(reinterpret_cast<uint8_t*>(payload.data()), payload.size());
  const CallMessage message{
      9, 1, 0, std::make_shared<GrpcEncodedForward>(call.encoding), 0, 2, ActivationForm::kInt8Row};
  ATELIER_ASSERT_OK_AND_ASSIGN(const ShmRequestHeader header, WriteShmRequest(message, 1500, room));
  const auto hex = [](const void* data, size_t size) {
    return absl::BytesToHexString({static_cast<const char*>(data), size});
  };
  EXPECT_EQ(hex(&header, sizeof(header)), recorded::kShmRequest);
  EXPECT_EQ(hex(payload.data(), 320), recorded::kShmRequestPayload);
  ForwardReply reply;
  reply.sums.push_back({0, std::string(32, '\x3f')});
  reply.queued = absl::Microseconds(3);
  reply.computed = absl::Microseconds(40);
  reply.non_finite_tokens = 1;
  payload.assign(4096, '\0');
  const ShmReplyHeader written = WriteShmReply(reply, room);
  EXPECT_EQ(hex(&written, sizeof(written)), recorded::kShmReply);
  EXPECT_EQ(hex(payload.data(), 128), recorded::kShmReplyPayload);
  EXPECT_EQ(recorded::Bytes(recorded::kShmSegment).substr(12),
            EncodeOpening({{4, 4096, 4096}, 500}));
}

}  // namespace
}  // namespace atelier
