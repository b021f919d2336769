#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/shm_worker_channel.h"
#include "libs/transport/shm_worker_server.h"
#include "libs/transport/worker_connection.h"

namespace atelier {
namespace {

using testing::FakeDescription;
using testing::FakeWorker;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr absl::Duration kPatience = absl::Minutes(1);

// Whether a client said that its worker is usable, and what it said last.
class News {
 public:
  WorkerConnection::StateCallback Callback() {
    return [this](const absl::StatusOr<WorkerDescription>& news) {
      absl::MutexLock lock(&mutex_);
      last_ = news.status();
      ++count_;
    };
  }
  void Forget() {
    absl::MutexLock lock(&mutex_);
    count_ = 0;
  }
  absl::Status AwaitUsable(bool usable) {
    absl::MutexLock lock(&mutex_);
    const auto is = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return count_ > 0 && last_.ok() == usable;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is), kPatience)) {
      return absl::InternalError("the test lost its patience");
    }
    return last_;
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
};

class ShmConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(Options()); }
  void TearDown() override {
    connection_ = nullptr;
    worker_.Release();
  }

  ShmServerOptions Options() {
    ShmServerOptions options;
    options.path = directory_.File("worker.sock");
    options.num_slots = 4;
    options.bytes_per_client = 1 << 20;
    options.hidden_size = 16;
    options.num_experts = 8;
    options.top_k = 2;
    return options;
  }
  void Serve(const ShmServerOptions& options) {
    connection_ = nullptr;
    server_ = nullptr;
    auto server = ShmWorkerServer::Start(options, worker_, clock_, logger_);
    ATELIER_ASSERT_OK(server);
    server_ = *std::move(server);
  }
  void Start(const ShmServerOptions& options) {
    Serve(options);
    news_.Forget();
    connection_ = Connect(news_);
    ATELIER_ASSERT_OK(news_.AwaitUsable(true));
  }
  std::unique_ptr<WorkerConnection> Connect(News& news) {
    return WorkerConnection::Create("shm:" + directory_.File("worker.sock"), clock_, logger_,
                                    news.Callback());
  }
  static std::shared_ptr<const EncodedForward> Request(int layer, int num_tokens) {
    const std::vector<BFloat16> rows(static_cast<size_t>(num_tokens) * 16, ToBFloat16(2.0f));
    const std::vector<int32_t> ids(static_cast<size_t>(num_tokens) * 2, 1);
    const std::vector<float> weights(static_cast<size_t>(num_tokens) * 2, 0.5f);
    ForwardEncoding encoding;
    encoding.layer = layer;
    encoding.batch = {num_tokens, 16, rows.data()};
    encoding.routing = {num_tokens, 2, ids.data(), weights.data()};
    return EncodeForward(encoding);
  }
  // The answer's first value; the caller looks for it first, if asked to.
  absl::StatusOr<float> Run(const std::shared_ptr<const EncodedForward>& request, bool look) {
    absl::Notification answered;
    ForwardReply reply;
    const auto in_flight =
        connection_->Forward(request, clock_.Now() + kPatience, [&](ForwardReply answer) {
          reply = std::move(answer);
          answered.Notify();
        });
    if (look) in_flight->AwaitBriefly();
    answered.WaitForNotification();
    if (!reply.status.ok()) return reply.status;
    float first = 0;
    std::memcpy(&first, reply.sums.at(0).data.data(), sizeof(first));
    return first;
  }
  static float Expected(int layer) { return 2.0f * static_cast<float>(2 + 16 * layer); }
  template <typename Condition>
  static bool Await(const Condition& condition) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (!condition() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    return condition();
  }

  testing::TempDir directory_;
  SystemClock clock_;
  Logger logger_{Severity::kError, [](absl::string_view) {}};
  FakeWorker worker_{FakeDescription()};
  News news_;
  std::unique_ptr<ShmWorkerServer> server_;
  std::unique_ptr<WorkerConnection> connection_;
};

TEST_F(ShmConnectionTest, ManyThreadsGetTheirOwnAnswersOverFewSlots) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto request = Request(i % 4, 3);
      for (int n = 0; n < 100; ++n) {
        const absl::StatusOr<float> first = Run(request, n % 2 == 0);
        ASSERT_THAT(first, IsOk());
        EXPECT_EQ(*first, Expected(i % 4));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// How a stream of calls is told that it stands, or why not.
class Standing final : public CallStream::Observer {
 public:
  void OnStreamReady() override { Note(absl::OkStatus()); }
  void OnAnswer(uint64_t, absl::FunctionRef<ForwardReply(const ExpectedSums&)>) override {}
  void OnStreamDone(const absl::Status& status) override {
    Note(status);
    done_.Notify();
  }
  absl::Status Await() {
    noted_.WaitForNotification();
    return first_;
  }
  void AwaitDone() { done_.WaitForNotification(); }

 private:
  void Note(const absl::Status& status) {
    if (noted_.HasBeenNotified()) return;
    first_ = status;
    noted_.Notify();
  }
  absl::Status first_;
  absl::Notification noted_, done_;
};

// One CPU, and a caller that anybody else takes it from: whom it asks answers before it goes on.
TEST_F(ShmConnectionTest, TheMemoryMayComeBeforeTheAskingForItReturns) {
  std::thread opening([this] {
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    Serve(Options());  // its thread stays on the same CPU
    const auto channel = OpenShmChannel("shm:" + directory_.File("worker.sock"));
    absl::Notification described;
    channel->Describe(kPatience, [&](const auto& description) {
      EXPECT_THAT(description, IsOk());
      described.Notify();
    });
    described.WaitForNotification();
    const sched_param no_priority{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &no_priority), 0);
    Standing standing;
    const auto stream = channel->OpenStream(standing);
    EXPECT_THAT(standing.Await(), IsOk());
    channel->CancelStream();
    standing.AwaitDone();
  });
  opening.join();
}

TEST_F(ShmConnectionTest, ABatchBeyondAllSlotsTogetherGoesOutInTurns) {
  ShmServerOptions options = Options();
  options.bytes_per_client = 4 * (4 * 4096 + 60 * 112);  // about 60 rows a slot
  Start(options);
  const absl::StatusOr<float> first = Run(Request(2, 2000), false);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(*first, Expected(2));
  EXPECT_GT(worker_.calls(), 8);
  EXPECT_EQ(worker_.tokens(), 2000);
}

TEST_F(ShmConnectionTest, CallsBeyondTheSlotsWaitAndThoseBeyondTheQueueAreRefused) {
  worker_.Hold();
  const auto request = Request(1, 1);
  std::atomic<int> ok{0}, exhausted{0};
  std::vector<std::unique_ptr<ForwardInFlight>> calls;
  for (int i = 0; i < 4 + 1024 + 3; ++i) {
    calls.push_back(
        connection_->Forward(request, clock_.Now() + kPatience, [&](const ForwardReply& reply) {
          if (reply.status.ok()) ++ok;
          if (absl::IsResourceExhausted(reply.status)) ++exhausted;
        }));
  }
  EXPECT_EQ(exhausted, 3);
  ASSERT_TRUE(worker_.AwaitCalls(4));
  worker_.Release();
  EXPECT_TRUE(Await([&] { return ok == 4 + 1024; }));
}

TEST_F(ShmConnectionTest, TheSlotsOfAbandonedCallsAreUsedAgain) {
  const auto request = Request(1, 1);
  for (int i = 0; i < 100; ++i) {
    connection_->Forward(request, clock_.Now() + kPatience, [](const ForwardReply&) {});
  }
  const absl::StatusOr<float> first = Run(request, true);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(*first, Expected(1));
}

TEST_F(ShmConnectionTest, AClientThatGoesIsForgottenAndItsCallsAreCancelled) {
  worker_.Hold();
  auto call =
      connection_->Forward(Request(1, 1), clock_.Now() + kPatience, [](const ForwardReply&) {});
  ASSERT_TRUE(worker_.AwaitCalls(1));
  connection_ = nullptr;
  call = nullptr;
  EXPECT_TRUE(worker_.AwaitCancelled());
  EXPECT_TRUE(Await([&] { return server_->num_clients() == 0; }));
  worker_.Release();
  News news;
  connection_ = Connect(news);
  EXPECT_THAT(news.AwaitUsable(true), IsOk());
  EXPECT_THAT(Run(Request(1, 1), true), IsOk());
}

TEST_F(ShmConnectionTest, TheAnswersOfAWorkerThatShutsDownArriveFirst) {
  worker_.Hold();
  std::atomic<int> ok{0};
  absl::Notification answered;
  const auto call =
      connection_->Forward(Request(1, 1), clock_.Now() + kPatience, [&](const ForwardReply& reply) {
        if (reply.status.ok()) ++ok;
        answered.Notify();
      });
  ASSERT_TRUE(worker_.AwaitCalls(1));
  std::thread stopping([this] { server_->Shutdown(kPatience); });
  worker_.Release();
  answered.WaitForNotification();
  stopping.join();
  EXPECT_EQ(ok, 1);
  EXPECT_THAT(news_.AwaitUsable(false), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

TEST_F(ShmConnectionTest, OneClientTooManyIsToldSoAndComesInLater) {
  ShmServerOptions options = Options();
  options.max_clients = 1;
  Start(options);
  News news;
  const auto second = Connect(news);
  EXPECT_THAT(news.AwaitUsable(false),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("shm_max_clients=1")));
  connection_ = nullptr;
  EXPECT_THAT(news.AwaitUsable(true), IsOk());
}

TEST_F(ShmConnectionTest, AnotherUsersProcessIsRefused) {
  ShmServerOptions options = Options();
  options.allowed_uids = {::geteuid() + 1};
  Serve(options);
  News news;
  const auto connection = Connect(news);
  EXPECT_THAT(news.AwaitUsable(false),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--shm-allow-uids")));
}

TEST_F(ShmConnectionTest, WhoIsIdleSleeps) {
  EXPECT_THAT(Run(Request(1, 1), true), IsOk());
  absl::SleepFor(absl::Milliseconds(1500));  // until both sides sleep for good
  const auto cpu = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  const absl::Duration before = cpu();
  absl::SleepFor(absl::Seconds(1));
  // What remains is one Describe a second; a thread that looked would take it all.
  EXPECT_LT(cpu() - before, absl::Milliseconds(200));
  EXPECT_THAT(Run(Request(1, 1), true), IsOk());
}

}  // namespace
}  // namespace atelier
