// Peers that write what they like into the memory and over the socket.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/shm_client_stream.h"
#include "libs/transport/shm_frames.h"
#include "libs/transport/shm_lane.h"
#include "libs/transport/shm_worker_server.h"

namespace atelier {
namespace {

using testing::FakeDescription;
using testing::FakeWorker;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// What a side says of the other, awaited.
class Verdict {
 public:
  std::function<void(const absl::Status&)> Callback() {
    return [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      status_ = status;
      given_ = true;
    };
  }
  absl::Status Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&given_), absl::Minutes(1));
    return status_;
  }

 private:
  absl::Mutex mutex_;
  bool given_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class HostileClientTest : public ::testing::Test {
 protected:
  HostileClientTest()
      : segment_(ShmSegment::Create({4, 4096, 4096}, {}).value()),
        lane_(ShmLane::Start({worker_, clock_, {16, 8, 64}, absl::Minutes(1), 0}, segment_,
                             absl::ZeroDuration(), spinners_, verdict_.Callback())) {}
  ~HostileClientTest() override {
    lane_->Close();
    worker_.Release();
  }
  void Post(uint32_t number, uint32_t slot) {
    segment_->request_notice(number).store(MakeNotice(number, slot), std::memory_order_release);
    Ring(segment_->control().worker_bell);
  }
  ShmReplyHeader AwaitReply(uint32_t number, uint32_t slot) {
    while (segment_->reply_notice(number).load(std::memory_order_acquire) >> 32 != number) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return segment_->header(slot).reply;
  }

  SystemClock clock_;
  FakeWorker worker_{FakeDescription()};
  ShmSpinners spinners_;
  Verdict verdict_;
  std::shared_ptr<ShmSegment> segment_;
  std::shared_ptr<ShmLane> lane_;
};

TEST_F(HostileClientTest, ASlotThatThereIsNotEndsTheConnection) {
  Post(1, 4);
  EXPECT_THAT(verdict_.Await(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("slot 4")));
}

TEST_F(HostileClientTest, ASlotPostedTwiceEndsTheConnection) {
  worker_.Hold();
  ShmRequestHeader& header = segment_->header(0).request;
  header.top_k = 1;
  header.dtype = 1;
  Post(1, 0);
  ASSERT_TRUE(worker_.AwaitCalls(1));
  Post(2, 0);
  EXPECT_THAT(verdict_.Await(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("again")));
}

TEST_F(HostileClientTest, AHeaderOfNonsenseIsRefusedAndTheNextCallServed) {
  std::memset(static_cast<void*>(&segment_->header(1).request), 0xff, sizeof(ShmRequestHeader));
  Post(1, 1);
  EXPECT_EQ(AwaitReply(1, 1).code, static_cast<int>(absl::StatusCode::kInvalidArgument));
  ShmRequestHeader good{};
  good.sequence = 5;
  good.top_k = 1;
  good.dtype = 1;
  segment_->header(1).request = good;
  Post(2, 1);
  EXPECT_EQ(AwaitReply(2, 1).code, 0);
  EXPECT_EQ(lane_->in_flight(), 0);
}

// The client's side, with a worker that this test plays.
class HostileWorkerTest : public ::testing::Test, public CallStream::Observer {
 protected:
  HostileWorkerTest() : segment_(ShmSegment::Create({4, 4096, 4096}, {}).value()) {
    stream_ = std::make_shared<ShmClientStream>(*this, verdict_.Callback());
    stream_->Open(segment_, absl::ZeroDuration());
    const std::vector<BFloat16> rows(16, ToBFloat16(1.0f));
    const std::vector<int32_t> ids = {1};
    const std::vector<float> weights = {1.0f};
    ForwardEncoding encoding;
    encoding.batch = {1, 16, rows.data()};
    encoding.routing = {1, 1, ids.data(), weights.data()};
    const auto request =
        std::static_pointer_cast<const GrpcEncodedForward>(EncodeForward(encoding));
    EXPECT_THAT(stream_->Send({7, 3, 1000, request, 0, 1}), IsOk());
  }
  ~HostileWorkerTest() override { stream_->Close(absl::OkStatus()); }

  void Answer(uint32_t slot, uint64_t epoch, uint64_t sequence) {
    segment_->header(0).reply = {epoch, sequence, 0, 0, 0, 0, 0, 0, 0};
    segment_->reply_notice(1).store(MakeNotice(1, slot), std::memory_order_release);
    Ring(segment_->control().client_bell);
  }

  void OnStreamReady() override {}
  void OnAnswer(uint64_t, absl::FunctionRef<ForwardReply(const ExpectedSums&)>) override {
    ++answers_;
  }
  void OnStreamDone(const absl::Status&) override {}

  Verdict verdict_;
  std::atomic<int> answers_{0};
  std::shared_ptr<ShmSegment> segment_;
  std::shared_ptr<ShmClientStream> stream_;
};

TEST_F(HostileWorkerTest, AnAnswerInASlotThatThereIsNotEndsTheConnection) {
  Answer(0xffffffff, 3, 7);
  EXPECT_THAT(verdict_.Await(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("slot 4294967295")));
}

TEST_F(HostileWorkerTest, AnAnswerToAnotherCallOrEpochEndsTheConnection) {
  Answer(0, 2, 7);
  EXPECT_THAT(verdict_.Await(), StatusIs(absl::StatusCode::kInternal, HasSubstr("epoch=2")));
  EXPECT_EQ(answers_, 0);
}

TEST_F(HostileWorkerTest, AnAnswerInASlotWithoutACallEndsTheConnection) {
  Answer(2, 0, 0);
  EXPECT_THAT(verdict_.Await(), StatusIs(absl::StatusCode::kInternal, HasSubstr("no such call")));
}

TEST_F(HostileWorkerTest, SilenceWithACallInFlightEndsTheConnection) {
  EXPECT_THAT(verdict_.Await(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no sign of life")));
}

class HostileSocketTest : public ::testing::Test {
 protected:
  HostileSocketTest() {
    ShmServerOptions options;
    options.path = directory_.File("s");
    options.hidden_size = 16;
    options.num_experts = 8;
    options.top_k = 2;
    auto server = ShmWorkerServer::Start(options, worker_, clock_, logger_);
    EXPECT_THAT(server, IsOk());
    server_ = *std::move(server);
  }
  static OwnedFd Socket() { return OwnedFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  std::string Path() const { return directory_.File("s"); }
  static void Send(const OwnedFd& socket, const std::string& path, const std::string& text) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(::write(socket.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static void ExpectRefusal(const OwnedFd& socket) {
    ShmFrameReader reader(4096);
    absl::Status read;
    while (read.ok()) {  // until the server hangs up
      pollfd fd{socket.get(), POLLIN, 0};
      ::poll(&fd, 1, -1);
      read = reader.Read(socket.get());
    }
    const std::optional<ShmFrame> last = reader.Next();
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->type, ShmFrameType::kRefused);
  }

  absl::Notification waits_;  // said once: a client waits to be let in

 private:
  testing::TempDir directory_;
  SystemClock clock_;
  Logger logger_{Severity::kWarning, [this](absl::string_view line) {
                   if (absl::StrContains(line, "shm_client_waits")) waits_.Notify();
                 }};
  FakeWorker worker_{FakeDescription()};
  std::unique_ptr<ShmWorkerServer> server_;
};

TEST_F(HostileSocketTest, WhoSpeaksAnotherProtocolIsDroppedAndOthersAreServed) {
  for (const std::string text : {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"}) {
    const OwnedFd socket = Socket();
    Send(socket, Path(), text);
    ExpectRefusal(socket);
  }
}

// Of a process that is out of descriptors for a while.
TEST_F(HostileSocketTest, WhoCannotBeLetInYetIsLetInLater) {
  const OwnedFd first = Socket(), second = Socket();
  // Before descriptors run out: UBSan checks an object's type through a pipe.
  const std::string path = Path();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit reached = limit;
  reached.rlim_cur = static_cast<rlim_t>(first.get());  // the lowest that was free
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &reached), 0);
  Send(first, path, "hello, who is there?");
  Send(second, path, "hello, who is there?");
  waits_.WaitForNotification();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ExpectRefusal(first);
  ExpectRefusal(second);
}

}  // namespace
}  // namespace atelier
