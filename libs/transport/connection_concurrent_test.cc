// Many threads on one connection whose network is ours, so that ThreadSanitizer sees every
// hand-over: gRPC's own threads are compiled without it.
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_worker.h"
#include "libs/testing/status_matchers.h"
#include "libs/transport/client_stream.h"
#include "libs/transport/codec.h"
#include "libs/transport/connection_core.h"

namespace atelier {
namespace {

using testing::FakeDescription;
using testing::FakeWorker;

using StreamCall = grpc::ClientCallbackReaderWriter<grpc::ByteBuffer, v1::ForwardResponse>;

// A stream's far end: a thread of its own answers every request as FakeWorker would, and cuts the
// stream when it is told to. Calls the reactor as gRPC does: one reaction at a time of each kind,
// OnDone last.
class LoopbackStream final : public StreamCall {
 public:
  LoopbackStream() : description_(FakeDescription()) {}
  ~LoopbackStream() override {
    Cut();
    if (thread_.joinable()) thread_.join();
  }

  void Bind(ClientStream& stream) {
    stream_ = &stream;
    BindReactor(&stream);
  }
  void Cut() {
    absl::MutexLock lock(&mutex_);
    cut_ = true;
  }

  void StartCall() override {
    thread_ = std::thread([this] { Run(); });
  }
  void Write(const grpc::ByteBuffer* message, grpc::WriteOptions /*options*/) override {
    absl::MutexLock lock(&mutex_);
    writing_ = message;
  }
  void Read(v1::ForwardResponse* into) override {
    absl::MutexLock lock(&mutex_);
    reading_ = into;
  }
  void WritesDone() override {}
  void AddHold(int holds) override { holds_ += holds; }
  void RemoveHold() override { --holds_; }

 private:
  bool Stirs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return cut_ || writing_ != nullptr || (reading_ != nullptr && !answers_.empty());
  }

  void Run() {
    reactor().OnReadInitialMetadataDone(true);
    while (true) {
      const grpc::ByteBuffer* written = nullptr;
      v1::ForwardResponse* read = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &LoopbackStream::Stirs));
        if (cut_) break;
        written = std::exchange(writing_, nullptr);
        if (written != nullptr) Answer(*written);
        if (reading_ != nullptr && !answers_.empty()) {
          read = std::exchange(reading_, nullptr);
          *read = std::move(answers_.front());
          answers_.pop_front();
        }
      }
      if (written != nullptr) reactor().OnWriteDone(true);
      if (read != nullptr) reactor().OnReadDone(true);
    }
    Finish();
  }

  void Finish() {
    bool write_fails = false;
    {
      absl::MutexLock lock(&mutex_);
      write_fails = writing_ != nullptr;
    }
    if (write_fails) reactor().OnWriteDone(false);
    reactor().OnReadDone(false);  // a read is always outstanding
    ASSERT_EQ(holds_, 0);
    reactor().OnDone(grpc::Status(grpc::StatusCode::UNAVAILABLE, "cut"));
  }

  void Answer(const grpc::ByteBuffer& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto message = std::make_shared<v1::ForwardRequest>();
    grpc::ByteBuffer copy(bytes);
    ASSERT_TRUE(
        grpc::SerializationTraits<v1::ForwardRequest>::Deserialize(&copy, message.get()).ok());
    if (message->cancel()) return;
    const uint64_t id = message->id();
    const ForwardShape shape{description_.hidden_size, description_.num_experts, 8192};
    const absl::StatusOr<ForwardRequest> request = DecodeForwardRequest(message, shape);
    ASSERT_THAT(request, testing::IsOk());
    answers_.emplace_back();
    EncodeForwardReply(id, FakeWorker::Compute(description_, *request), &answers_.back());
  }

  // Its reactions are public in the interface, which is what gRPC calls too.
  grpc::ClientBidiReactor<grpc::ByteBuffer, v1::ForwardResponse>& reactor() { return *stream_; }

  const WorkerDescription description_;
  ClientStream* stream_ = nullptr;
  std::thread thread_;
  std::atomic<int> holds_{0};
  absl::Mutex mutex_;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  const grpc::ByteBuffer* writing_ ABSL_GUARDED_BY(mutex_) = nullptr;
  v1::ForwardResponse* reading_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<v1::ForwardResponse> answers_ ABSL_GUARDED_BY(mutex_);
};

class LoopbackChannel final : public WorkerChannel {
 public:
  ~LoopbackChannel() override {
    if (describing_.joinable()) describing_.join();
  }
  void Describe(absl::Duration /*timeout*/, DescribeCallback done) override {
    if (describing_.joinable()) describing_.join();
    describing_ = std::thread([done = std::move(done)] { done(FakeDescription()); });
  }
  void CancelDescribe() override {}
  std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer) override {
    return ClientStream::Open([this](ClientStream& stream) { stream_.Bind(stream); }, observer);
  }
  void CancelStream() override { stream_.Cut(); }

 private:
  std::thread describing_;
  LoopbackStream stream_;
};

// The channel of the moment, to be cut by the test.
class LoopbackNetwork {
 public:
  WorkerChannelFactory Factory() {
    return [this](const std::string&) {
      auto channel = std::make_unique<Reported>(*this);
      absl::MutexLock lock(&mutex_);
      current_ = channel->channel.get();
      ++opened_;
      return channel;
    };
  }
  void Cut() {
    absl::MutexLock lock(&mutex_);
    if (current_ != nullptr) current_->CancelStream();
  }
  int opened() {
    absl::MutexLock lock(&mutex_);
    return opened_;
  }

 private:
  struct Reported final : WorkerChannel {
    explicit Reported(LoopbackNetwork& network) : network(network) {}
    ~Reported() override {
      absl::MutexLock lock(&network.mutex_);
      if (network.current_ == channel.get()) network.current_ = nullptr;
    }
    void Describe(absl::Duration timeout, DescribeCallback done) override {
      channel->Describe(timeout, std::move(done));
    }
    void CancelDescribe() override { channel->CancelDescribe(); }
    std::shared_ptr<CallStream> OpenStream(CallStream::Observer& observer) override {
      return channel->OpenStream(observer);
    }
    void CancelStream() override { channel->CancelStream(); }

    LoopbackNetwork& network;
    std::unique_ptr<LoopbackChannel> channel = std::make_unique<LoopbackChannel>();
  };

  absl::Mutex mutex_;
  WorkerChannel* current_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ConnectionConcurrentTest : public ::testing::Test {
 protected:
  ConnectionConcurrentTest()
      : connection_(CreateConnection(
            "loopback:1", clock_, logger_,
            [this](const absl::StatusOr<WorkerDescription>& news) {
              absl::MutexLock lock(&mutex_);
              usable_ = news.ok();
            },
            network_.Factory())) {}

  void AwaitUsable() {
    absl::MutexLock lock(&mutex_);
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&usable_), absl::Minutes(1)));
  }
  std::shared_ptr<const EncodedForward> Request(int layer) const {
    ForwardEncoding encoding;
    encoding.layer = layer;
    encoding.batch = {1, 16, rows_.data()};
    encoding.routing = {1, 2, ids_.data(), weights_.data()};
    return EncodeForward(encoding);
  }
  absl::Status Run(int layer) {
    absl::Notification answered;
    ForwardReply reply;
    const auto in_flight = connection_->Forward(Request(layer), absl::Now() + absl::Minutes(1),
                                                [&](ForwardReply answer) {
                                                  reply = std::move(answer);
                                                  answered.Notify();
                                                });
    answered.WaitForNotification();
    if (!reply.status.ok()) return reply.status;
    EXPECT_EQ(FirstOf(reply), Expected(layer));
    return reply.status;
  }
  static float FirstOf(const ForwardReply& reply) {
    float first = 0;
    std::memcpy(&first, reply.sums.at(0).data.data(), sizeof(first));
    return first;
  }
  float Expected(int layer) const {
    return ToFloat(rows_[0]) * (0.5f * static_cast<float>(ids_[0] + 1 + 16 * layer) +
                                0.25f * static_cast<float>(ids_[1] + 1 + 16 * layer));
  }

  const std::vector<BFloat16> rows_ = std::vector<BFloat16>(16, ToBFloat16(2.0f));
  const std::vector<int32_t> ids_ = {1, 6};
  const std::vector<float> weights_ = {0.5f, 0.25f};
  SystemClock clock_;
  Logger logger_{Severity::kError};
  LoopbackNetwork network_;
  absl::Mutex mutex_;
  bool usable_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<WorkerConnection> connection_;  // first to go: it calls the rest
};

TEST_F(ConnectionConcurrentTest, ManyThreadsGetTheirOwnAnswers) {
  AwaitUsable();
  std::vector<std::thread> threads;
  for (int layer = 0; layer < 4; ++layer) {
    threads.emplace_back([this, layer] {
      for (int i = 0; i < 50; ++i) EXPECT_THAT(Run(layer), testing::IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ConnectionConcurrentTest, ACutStreamFailsEveryCallOnceAndIsOpenedAgain) {
  AwaitUsable();
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int layer = 0; layer < 3; ++layer) {
    threads.emplace_back([&, layer] {
      while (!stop) {
        const absl::Status status = Run(layer);
        if (status.ok()) ++answered;
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      }
    });
  }
  for (int cuts = 1; cuts <= 3; ++cuts) {
    const int before = answered;
    while (answered < before + 10) absl::SleepFor(absl::Milliseconds(1));
    network_.Cut();
    while (network_.opened() <= cuts) absl::SleepFor(absl::Milliseconds(1));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ConnectionConcurrentTest, AbandonedCallsAreNeverAnsweredAfterwards) {
  AwaitUsable();
  std::vector<std::thread> threads;
  for (int layer = 0; layer < 4; ++layer) {
    threads.emplace_back([this, layer] {
      for (int i = 0; i < 100; ++i) {
        auto answer = std::make_unique<ForwardReply>();  // freed at once: a late answer would write
        auto in_flight =
            connection_->Forward(Request(layer), absl::Now() + absl::Minutes(1),
                                 [&answer](ForwardReply reply) { *answer = std::move(reply); });
        in_flight.reset();
        answer.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace atelier
