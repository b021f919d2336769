#include "services/expert-worker/worker_service.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_clock.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "services/expert-worker/fake_calls.h"
#include "services/expert-worker/request_checks.h"

namespace atelier {
namespace {

using ::atelier::testing::CallSpec;
using ::atelier::testing::FakeContext;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kHidden = 2;

WorkerDescription Description() {
  WorkerDescription description;
  description.epoch = 77;
  description.model_digest = "abc";
  description.hidden_size = kHidden;
  description.num_experts = 4;
  description.shards = {{{1, 2}, 0, 4, 0, 2}, {{2, 3}, 0, 4, 1, 2}};
  description.limits = {.max_tokens_per_call = 100, .max_queued_calls = 3};
  return description;
}

// Gives each row back times (shard + 1), and can be held in the middle of a batch.
class EchoExecutor final : public Executor {
 public:
  int Forward(const LayerBatch& batch, const std::vector<float*>& out) override {
    absl::MutexLock lock(&mutex_);
    batches_.push_back(batch.tokens.num_tokens);
    mutex_.Await(absl::Condition(&released_));
    const int count = batch.tokens.num_tokens * batch.tokens.hidden_size;
    for (size_t shard = 0; shard < out.size(); ++shard) {
      for (int i = 0; i < count; ++i) {
        out[shard][i] = ToFloat(batch.tokens.rows[i]) * static_cast<float>(shard + 1);
      }
    }
    return non_finite_;
  }

  void Hold() { SetReleased(false); }
  void Release() { SetReleased(true); }
  void WaitForBatches(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, count] { return batches_.size() >= count; };
    mutex_.Await(absl::Condition(&reached));
  }
  std::vector<int> batches() {
    absl::MutexLock lock(&mutex_);
    return batches_;
  }
  void set_non_finite(int count) {
    absl::MutexLock lock(&mutex_);
    non_finite_ = count;
  }

 private:
  void SetReleased(bool released) {
    absl::MutexLock lock(&mutex_);
    released_ = released;
  }

  absl::Mutex mutex_;
  bool released_ = true;
  int non_finite_ = 0;
  std::vector<int> batches_;
};

std::shared_ptr<Executor> Borrowed(EchoExecutor& executor) {
  return {std::shared_ptr<void>(), &executor};
}

// A call under way.
struct Pending {
  absl::Notification done;
  ForwardReply reply;
  std::shared_ptr<FakeContext> context = std::make_shared<FakeContext>();
};

class WorkerServiceTest : public ::testing::Test {
 protected:
  ~WorkerServiceTest() override {
    executor_.Release();
    service_.Stop();
  }

  std::shared_ptr<Pending> Send(ForwardRequest request) {
    auto pending = std::make_shared<Pending>();
    service_.Forward(std::move(request), pending->context, [pending](ForwardReply reply) {
      pending->reply = std::move(reply);
      pending->done.Notify();
    });
    return pending;
  }
  ForwardReply Call(ForwardRequest request) {
    const std::shared_ptr<Pending> pending = Send(std::move(request));
    pending->done.WaitForNotification();
    return pending->reply;
  }
  static std::vector<float> Floats(const std::string& data) {
    std::vector<float> values(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  double Calls(absl::StatusCode code) {
    return metrics_.CallsWith(absl::StatusCodeToString(code)).Value();
  }

  testing::FakeClock clock_;
  Logger logger_{Severity::kError};
  prometheus::Registry registry_;
  WorkerMetrics metrics_{registry_};
  Lifecycle lifecycle_{logger_};
  EchoExecutor executor_;
  WorkerService service_{
      {Description(), {1000, 100}}, {.max_queued_calls = 3}, {lifecycle_, metrics_, clock_}};
};

TEST_F(WorkerServiceTest, AnswersEachShardThatHoldsTheLayer) {
  service_.Serve(Borrowed(executor_));
  const ForwardReply both = Call(testing::MakeRequest({.id = 5, .layer = 2, .num_tokens = 2}));
  ATELIER_ASSERT_OK(both.status);
  ASSERT_EQ(both.sums.size(), 2u);
  EXPECT_THAT(Floats(both.sums[0].data), ElementsAre(5, 5, 6, 6));
  EXPECT_THAT(Floats(both.sums[1].data), ElementsAre(10, 10, 12, 12));
  const ForwardReply second = Call(testing::MakeRequest({.id = 1, .layer = 3}));
  ASSERT_EQ(second.sums.size(), 1u);
  EXPECT_EQ(second.sums[0].shard, 1);
}

TEST_F(WorkerServiceTest, AnswersInBf16OnRequest) {
  service_.Serve(Borrowed(executor_));
  ForwardRequest request = testing::MakeRequest({.id = 5});
  request.output_dtype = DType::kBF16;
  const ForwardReply reply = Call(std::move(request));
  ASSERT_EQ(reply.sums[0].data.size(), kHidden * sizeof(BFloat16));
}

TEST_F(WorkerServiceTest, MergesWhatArrivesWhileABatchComputesAndSplitsTheSums) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  const auto first = Send(testing::MakeRequest({.id = 1}));
  executor_.WaitForBatches(1);
  const auto second = Send(testing::MakeRequest({.id = 20, .num_tokens = 2}));
  const auto third = Send(testing::MakeRequest({.id = 30, .top_k = 4}));
  EXPECT_EQ(metrics_.queue_depth.Value(), 2);
  clock_.Advance(absl::Seconds(3));
  executor_.Release();
  for (const auto& pending : {first, second, third}) pending->done.WaitForNotification();
  EXPECT_THAT(executor_.batches(), ElementsAre(1, 3));
  EXPECT_THAT(Floats(first->reply.sums[0].data), ElementsAre(1, 1));
  EXPECT_THAT(Floats(second->reply.sums[0].data), ElementsAre(20, 20, 21, 21));
  EXPECT_THAT(Floats(third->reply.sums[0].data), ElementsAre(30, 30));
  EXPECT_EQ(first->reply.queued, absl::ZeroDuration());
  EXPECT_EQ(first->reply.computed, absl::Seconds(3));
  EXPECT_EQ(second->reply.queued, absl::Seconds(3));
  EXPECT_EQ(metrics_.tokens.Value(), 4);
}

TEST_F(WorkerServiceTest, CountsRowsExpertsAndBytesOfTheShardsThatHoldTheLayer) {
  service_.Serve(Borrowed(executor_));
  // Two tokens with two experts each: 0, 1 and 2, 3.
  ATELIER_ASSERT_OK(Call(testing::MakeRequest({.layer = 2, .num_tokens = 2})).status);
  EXPECT_EQ(metrics_.expert_rows.Value(), 2 * 4);
  EXPECT_EQ(metrics_.activated_experts.Value(), 2 * 4);
  EXPECT_EQ(metrics_.weight_bytes_read.Value(), 4 * 1000 + 4 * 100);
  // Six tokens: experts 0 to 3 three times, of the second shard alone.
  ATELIER_ASSERT_OK(Call(testing::MakeRequest({.layer = 3, .num_tokens = 6})).status);
  EXPECT_EQ(metrics_.expert_rows.Value(), 8 + 12);
  EXPECT_EQ(metrics_.activated_experts.Value(), 8 + 4);
  EXPECT_EQ(metrics_.weight_bytes_read.Value(), 4400 + 400);
}

TEST_F(WorkerServiceTest, NoTokensAreAnsweredWithoutComputing) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  const ForwardReply reply = Call(testing::MakeRequest({.layer = 2, .num_tokens = 0}));
  ATELIER_EXPECT_OK(reply.status);
  ASSERT_EQ(reply.sums.size(), 2u);
  EXPECT_THAT(reply.sums[0].data, IsEmpty());
}

TEST_F(WorkerServiceTest, CountsNonFiniteRowsOfTheCallThatHasThem) {
  executor_.Hold();
  executor_.set_non_finite(1);
  service_.Serve(Borrowed(executor_));
  const auto blocker = Send(testing::MakeRequest({.id = 1}));
  executor_.WaitForBatches(1);
  ForwardRequest broken = testing::MakeRequest({.id = 2, .num_tokens = 2});
  auto data = std::make_shared<std::vector<BFloat16>>(
      4, ToBFloat16(std::numeric_limits<float>::quiet_NaN()));
  (*data)[0] = (*data)[1] = ToBFloat16(1.0f);
  broken.batch.rows = data->data();
  const auto bad = Send(std::move(broken));
  const auto good = Send(testing::MakeRequest({.id = 3}));
  executor_.Release();
  for (const auto& pending : {blocker, bad, good}) pending->done.WaitForNotification();
  EXPECT_EQ(bad->reply.non_finite_tokens, 1);
  EXPECT_EQ(good->reply.non_finite_tokens, 0);
}

TEST_F(WorkerServiceTest, IsUnavailableBeforeItServesAndOnceItDrains) {
  lifecycle_.Advance(WorkerState::kLoading);
  EXPECT_THAT(Call(testing::MakeRequest({})).status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("loading")));
  EXPECT_EQ(service_.Describe().state, WorkerState::kLoading);
  service_.Serve(Borrowed(executor_));
  ATELIER_EXPECT_OK(Call(testing::MakeRequest({})).status);
  // A call is answered a moment before it counts as ended.
  ATELIER_ASSERT_OK(service_.Drain(clock_.Now() + absl::Minutes(1)));
  EXPECT_THAT(Call(testing::MakeRequest({})).status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  EXPECT_EQ(service_.Describe().state, WorkerState::kDraining);
  EXPECT_EQ(Calls(absl::StatusCode::kUnavailable), 2);
  EXPECT_EQ(Calls(absl::StatusCode::kOk), 1);
}

TEST_F(WorkerServiceTest, DrainWaitsForCallsInFlightAndCountsThem) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  const auto first = Send(testing::MakeRequest({.id = 1}));
  const auto second = Send(testing::MakeRequest({.id = 2}));
  EXPECT_THAT(service_.Drain(clock_.Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("2 calls")));
  executor_.Release();
  const absl::StatusOr<int64_t> finished = service_.Drain(clock_.Now() + absl::Minutes(1));
  ATELIER_ASSERT_OK(finished);
  EXPECT_LE(*finished, 2);  // those that finished before this drain are not its own
  EXPECT_TRUE(first->done.HasBeenNotified());
  EXPECT_TRUE(second->done.HasBeenNotified());
  ATELIER_EXPECT_OK(second->reply.status);
}

TEST_F(WorkerServiceTest, StopAnswersWhatIsQueued) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  const auto computing = Send(testing::MakeRequest({.id = 1}));
  executor_.WaitForBatches(1);
  const auto queued = Send(testing::MakeRequest({.id = 2}));
  std::thread stopping([&] { service_.Stop(); });
  queued->done.WaitForNotification();
  EXPECT_THAT(queued->reply.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stops")));
  executor_.Release();
  stopping.join();
  EXPECT_TRUE(computing->done.HasBeenNotified());
  ATELIER_EXPECT_OK(computing->reply.status);
  EXPECT_THAT(Call(testing::MakeRequest({})).status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopping")));
}

TEST_F(WorkerServiceTest, CountsCallsThatWereRefusedWhileDecoding) {
  service_.OnRefused(absl::InvalidArgumentError("top_k=0"));
  EXPECT_EQ(Calls(absl::StatusCode::kInvalidArgument), 1);
}

TEST_F(WorkerServiceTest, DropsCancelledAndLateCallsWithoutComputingThem) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  const auto blocker = Send(testing::MakeRequest({.id = 1}));
  executor_.WaitForBatches(1);
  const auto gone = Send(testing::MakeRequest({.id = 2}));
  ForwardRequest urgent = testing::MakeRequest({.id = 3});
  urgent.deadline = clock_.Now() + absl::Seconds(1);
  const auto late = Send(std::move(urgent));
  gone->context->cancelled = true;
  clock_.Advance(absl::Seconds(1));
  executor_.Release();
  for (const auto& pending : {blocker, gone, late}) pending->done.WaitForNotification();
  EXPECT_EQ(gone->reply.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(late->reply.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(executor_.batches(), ElementsAre(1));
  EXPECT_EQ(metrics_.dropped_calls.Value(), 2);
}

TEST_F(WorkerServiceTest, AFullQueueRefusesAtOnce) {
  executor_.Hold();
  service_.Serve(Borrowed(executor_));
  std::vector<std::shared_ptr<Pending>> pending = {Send(testing::MakeRequest({.id = 1}))};
  executor_.WaitForBatches(1);
  for (uint64_t id = 2; id < 5; ++id) pending.push_back(Send(testing::MakeRequest({.id = id})));
  EXPECT_THAT(Call(testing::MakeRequest({.id = 9})).status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_calls=3")));
  executor_.Release();
  for (const auto& call : pending) {
    call->done.WaitForNotification();
    ATELIER_EXPECT_OK(call->reply.status);
  }
}

TEST_F(WorkerServiceTest, ManyClientsAtOnceGetTheirOwnRows) {
  service_.Serve(Borrowed(executor_));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 3; ++client) {  // as many as the queue holds
    clients.emplace_back([&, client] {
      for (uint64_t i = 0; i < 200; ++i) {
        const uint64_t id = 1 + (client * 40 + i) % 128;  // exact in bf16
        const ForwardReply reply = Call(testing::MakeRequest({.id = id, .num_tokens = 1}));
        ATELIER_ASSERT_OK(reply.status);
        EXPECT_THAT(Floats(reply.sums[0].data), ElementsAre(id, id));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Calls(absl::StatusCode::kOk), 600);
}

TEST(Lifecycle, OnlyGoesForwardAndTellsItsObservers) {
  const Logger logger(Severity::kError);
  Lifecycle lifecycle(logger);
  std::vector<WorkerState> seen;
  lifecycle.Observe([&](WorkerState state) { seen.push_back(state); });
  EXPECT_TRUE(lifecycle.Advance(WorkerState::kServing));
  EXPECT_FALSE(lifecycle.Advance(WorkerState::kLoading));
  EXPECT_FALSE(lifecycle.Advance(WorkerState::kServing));
  ATELIER_EXPECT_OK(lifecycle.Ready());
  EXPECT_TRUE(lifecycle.Advance(WorkerState::kStopped));
  EXPECT_THAT(lifecycle.Ready(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopped")));
  EXPECT_THAT(seen,
              ElementsAre(WorkerState::kStarting, WorkerState::kServing, WorkerState::kStopped));
}

TEST(RequestChecks, NameFieldAndValue) {
  const auto check = [](const std::function<void(ForwardRequest&)>& damage) {
    ForwardRequest request = testing::MakeRequest({});
    damage(request);
    return CheckRequest(request, Description());
  };
  using R = ForwardRequest;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  ATELIER_EXPECT_OK(check([](R&) {}));
  ATELIER_EXPECT_OK(check([](R& r) { r.epoch = 77, r.model_digest = "abc"; }));
  EXPECT_THAT(check([](R& r) { r.epoch = 76; }),
              StatusIs(kFailed, AllOf(HasSubstr("epoch=76"), HasSubstr("77"))));
  EXPECT_THAT(check([](R& r) { r.model_digest = "abd"; }),
              StatusIs(kFailed, AllOf(HasSubstr("model_digest=\"abd\""), HasSubstr("abc"))));
  for (const int layer : {-1, 0, 4, 1 << 30}) {
    EXPECT_THAT(check([layer](R& r) { r.layer = layer; }),
                StatusIs(kInvalid, AllOf(HasSubstr("layer=" + std::to_string(layer)),
                                         HasSubstr("layers 1-2"), HasSubstr("layers 2-3"))));
  }
  EXPECT_THAT(check([](R& r) { r = testing::MakeRequest({.num_tokens = 101}); }),
              StatusIs(kInvalid, AllOf(HasSubstr("num_tokens=101"), HasSubstr("=100"))));
  EXPECT_THAT(check([](R& r) { r.batch.hidden_size = 3; }),
              StatusIs(kInvalid, AllOf(HasSubstr("hidden_size=3"), HasSubstr("2"))));
  EXPECT_THAT(check([](R& r) { r.routing.top_k = 5; }),
              StatusIs(kInvalid, AllOf(HasSubstr("top_k=5"), HasSubstr("num_experts=4"))));
  EXPECT_THAT(check([](R& r) { r.routing.top_k = 0; }), StatusIs(kInvalid, HasSubstr("top_k=0")));
  EXPECT_THAT(check([](R& r) { r.output_dtype = DType::kF16; }),
              StatusIs(kInvalid, HasSubstr("output_dtype=F16")));
  const int32_t bad_ids[] = {0, 4};
  EXPECT_THAT(check([&](R& r) { r.routing.expert_ids = bad_ids; }),
              StatusIs(kInvalid, AllOf(HasSubstr("expert_ids"), HasSubstr("is 4"))));
}

// Layers 1-2 and 2-3 of the shards; skipped are experts of a layer that it holds.
TEST(RequestChecks, RowsForSkippedExpertsAreRefusedByName) {
  const ModelConfig config = ParseModelConfig(testing::TinyGlm4MoeConfig()).value();
  ForwardRequest request = testing::MakeRequest({});
  request.layer = 2;
  const int32_t ids[] = {1, 0, -1, 3};
  request.batch.num_tokens = 2;
  request.routing = {2, 2, ids, request.routing.weights};
  const auto check = [&](absl::string_view file) {
    return CheckNotSkipped(request, Description(), ExpertSet::Parse(file, config).value());
  };
  ATELIER_EXPECT_OK(CheckNotSkipped(request, Description(), ExpertSet()));
  ATELIER_EXPECT_OK(check("1: 0-15"));
  ATELIER_EXPECT_OK(check("2: 2,4-15"));
  EXPECT_THAT(check("2: 3"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("expert_ids[1][1]=3"), HasSubstr("layer 2"),
                                            HasSubstr("--skip-experts"))));
}

// Holds what it is told.
class FakeHost final : public ShardHost {
 public:
  absl::StatusOr<HeldShards> Load(const std::vector<ShardSpec>&) override { return next; }
  absl::StatusOr<HeldShards> Unload(const std::vector<ShardSpec>&) override { return next; }

  absl::StatusOr<HeldShards> next = absl::NotFoundError("nothing");
};

class ChangingServiceTest : public WorkerServiceTest {
 protected:
  void SetUp() override { service_.Serve(Borrowed(executor_), nullptr, &host_); }
  // A call of layer 2, which both shards of the description have at first.
  ForwardRequest Request(uint64_t epoch) {
    ForwardRequest request = testing::MakeRequest({.id = 5, .layer = 2, .hidden = kHidden});
    request.epoch = epoch;
    return request;
  }
  std::vector<ShardSpec> shards() { return service_.Describe().shards; }

  FakeHost host_;
  EchoExecutor other_;
};

TEST_F(ChangingServiceTest, ALoadIsDescribedUnderANewEpochAndOlderCallsGetWhatTheyKnow) {
  std::vector<ShardSpec> more = shards();
  more.push_back({{2}, 0, 4, 0, 1});
  host_.next = HeldShards{more, {1000, 100, 10}, Borrowed(other_)};
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription now, service_.Load({}));
  EXPECT_EQ(now.shards, more);
  EXPECT_EQ(now.epoch, 78u);
  EXPECT_EQ(service_.Describe().epoch, 78u);
  EXPECT_EQ(Call(Request(78)).sums.size(), 3u);
  EXPECT_EQ(Call(Request(0)).sums.size(), 3u);
  EXPECT_EQ(Call(Request(77)).sums.size(), 2u);
  EXPECT_EQ(executor_.batches().size(), 1u);
  EXPECT_EQ(other_.batches().size(), 2u);
  EXPECT_THAT(Call(Request(76)).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("78")));
  // The same again changes nothing.
  ATELIER_ASSERT_OK_AND_ASSIGN(const WorkerDescription again, service_.Load({}));
  EXPECT_EQ(again.epoch, 78u);
}

TEST_F(ChangingServiceTest, CallsOfTwoEpochsThatAreMergedAreComputedApart) {
  executor_.Hold();
  const auto first = Send(Request(77));
  executor_.WaitForBatches(1);
  host_.next = HeldShards{{{{2}, 0, 4, 0, 1}}, {10}, Borrowed(other_)};
  ATELIER_ASSERT_OK(service_.Load({}));
  const auto old_call = Send(Request(77));
  const auto new_call = Send(Request(78));
  executor_.Release();
  old_call->done.WaitForNotification();
  new_call->done.WaitForNotification();
  EXPECT_EQ(old_call->reply.sums.size(), 2u);
  EXPECT_EQ(new_call->reply.sums.size(), 1u);
  EXPECT_THAT(executor_.batches(), ElementsAre(1, 1));
  EXPECT_THAT(other_.batches(), ElementsAre(1));
}

TEST_F(ChangingServiceTest, AnUnloadWaitsUntilNobodyUsesTheOlderEpochAndThenRefusesIt) {
  auto held = std::make_shared<EchoExecutor>();
  const std::weak_ptr<EchoExecutor> before = held;
  host_.next = HeldShards{{{{2}, 0, 4, 0, 1}, {{1}, 0, 4, 0, 1}}, {10, 1}, std::move(held)};
  ATELIER_ASSERT_OK(service_.Load({}));
  host_.next = HeldShards{{{{2}, 0, 4, 0, 1}}, {10}, Borrowed(other_)};
  absl::Notification unloaded;
  absl::StatusOr<WorkerDescription> now;
  std::thread unloading([&] {
    now = service_.Unload({});
    unloaded.Notify();
  });
  while (service_.Describe().epoch != 79) std::this_thread::yield();
  EXPECT_THAT(service_.Load({}), StatusIs(absl::StatusCode::kAborted, HasSubstr("under way")));
  clock_.Advance(absl::Seconds(2));
  ATELIER_EXPECT_OK(Call(Request(78)).status);
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(unloaded.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  host_.next.value().executor = nullptr;
  clock_.Advance(absl::Seconds(2));
  unloading.join();
  EXPECT_TRUE(before.expired());
  ATELIER_ASSERT_OK(now);
  EXPECT_EQ(now->shards.size(), 1u);
  EXPECT_THAT(Call(Request(78)).status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("holds other experts")));
  ATELIER_EXPECT_OK(Call(Request(79)).status);
}

TEST_F(ChangingServiceTest, WhatTheHostRefusesChangesNothing) {
  EXPECT_THAT(service_.Load({}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_THAT(service_.Unload({}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_EQ(service_.Describe().epoch, 77u);
  ATELIER_ASSERT_OK(service_.Drain(clock_.Now() + absl::Minutes(1)));
  EXPECT_THAT(service_.Load({}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
}

TEST_F(WorkerServiceTest, WithoutAHostNothingChanges) {
  service_.Serve(Borrowed(executor_));
  EXPECT_THAT(service_.Load({}), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("started")));
  EXPECT_THAT(service_.Unload({}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("started")));
}

}  // namespace
}  // namespace atelier
