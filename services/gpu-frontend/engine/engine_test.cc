#include "services/gpu-frontend/engine/engine.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/metrics/metrics.h"
#include "libs/testing/fake_clock.h"
#include "libs/testing/fake_model_runner.h"
#include "libs/testing/generate_alone.h"
#include "libs/testing/recording_sink.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeModelOptions;
using testing::FakeModelRunner;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::RecordingSink;
using testing::StatusIs;

GenerateRequest Greedy(const std::string& id, std::vector<int32_t> prompt, int max_new_tokens) {
  GenerateRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

// Lets a test hold the engine's thread inside a step.
class StepGate {
 public:
  explicit StepGate(FakeModelRunner& runner) {
    runner.set_before_step([this](absl::Span<const SequenceStep> steps) { return Enter(steps); });
  }
  ~StepGate() { Open(); }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    closed_ = false;
  }
  // Lets one step through the closed gate.
  void PassOne() {
    absl::MutexLock lock(&mutex_);
    ++num_passes_;
  }
  // Until the n-th step since the start stands before the closed gate.
  void WaitForStep(size_t n = 1) {
    absl::MutexLock lock(&mutex_);
    const auto held = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return held_ && sizes_.size() == n;
    };
    mutex_.Await(absl::Condition(&held));
  }
  void FailNext(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    next_ = std::move(status);
  }
  // Tokens of each sequence in each step so far.
  std::vector<std::vector<int>> steps() {
    absl::MutexLock lock(&mutex_);
    return sizes_;
  }

 private:
  absl::Status Enter(absl::Span<const SequenceStep> steps) {
    absl::MutexLock lock(&mutex_);
    std::vector<int> sizes;
    for (const SequenceStep& step : steps) sizes.push_back(static_cast<int>(step.tokens.size()));
    sizes_.push_back(sizes);
    held_ = closed_;
    const auto may_pass = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !closed_ || num_passes_ > 0;
    };
    mutex_.Await(absl::Condition(&may_pass));
    if (closed_) --num_passes_;
    held_ = false;
    return std::exchange(next_, absl::OkStatus());
  }

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int num_passes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status next_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<int>> sizes_ ABSL_GUARDED_BY(mutex_);
};

class EngineTest : public ::testing::Test {
 protected:
  void Start(EngineOptions options = {}, FakeModelOptions model = {}) {
    runner_ = std::make_unique<FakeModelRunner>(model);
    gate_ = std::make_unique<StepGate>(*runner_);
    auto engine = Engine::Create(options, *runner_, clock_, logger_, metrics_);
    ASSERT_THAT(engine, IsOk());
    engine_ = *std::move(engine);
  }
  std::shared_ptr<RecordingSink> Submit(const GenerateRequest& request) {
    auto sink = std::make_shared<RecordingSink>(request.sampling.n);
    const absl::Status status = engine_->Submit(request, sink);
    EXPECT_THAT(status, IsOk());
    if (!status.ok()) sink->OnError(status);  // nobody else ends it
    return sink;
  }
  void WaitUntilIdle() {
    while (!engine_->Idle()) std::this_thread::yield();
  }

  testing::FakeClock clock_;
  Logger logger_{Severity::kError, [](absl::string_view) {}};
  prometheus::Registry registry_;
  FrontendMetrics metrics_{registry_};
  std::unique_ptr<FakeModelRunner> runner_;
  std::unique_ptr<StepGate> gate_;
  std::unique_ptr<Engine> engine_;  // destroyed first
};

TEST_F(EngineTest, AnswersARequest) {
  Start();
  const GenerateRequest request = Greedy("a", {1, 2, 3}, 10);
  const auto sink = Submit(request);
  sink->WaitUntilEnded();
  const RequestLimits limits{64, 256, 256, 0};
  EXPECT_EQ(sink->sequence().tokens,
            testing::GenerateAlone(*runner_, request, 0, {}, limits).tokens);
}

TEST_F(EngineTest, RefusesWhatIsInvalidAtOnce) {
  Start();
  auto sink = std::make_shared<RecordingSink>();
  EXPECT_THAT(
      engine_->Submit(Greedy("a", std::vector<int32_t>(300, 1), 1), sink),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("300"), HasSubstr("256"))));
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(EngineTest, RefusesAPromptThatTheKvCacheCanNeverHold) {
  Start({}, {.max_context = 256, .block_size = 4, .num_blocks = 5});
  auto sink = std::make_shared<RecordingSink>();
  EXPECT_THAT(engine_->Submit(Greedy("a", std::vector<int32_t>(20, 1), 1), sink),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("KV cache of 20 tokens")));
}

TEST_F(EngineTest, RefusesAnIdInFlightAndTakesItAgainAfterwards) {
  Start();
  gate_->Close();
  const auto sink = Submit(Greedy("a", {1, 2}, 2));
  EXPECT_THAT(engine_->Submit(Greedy("a", {1, 2}, 2), std::make_shared<RecordingSink>()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("id=\"a\"")));
  gate_->Open();
  sink->WaitUntilEnded();
  Submit(Greedy("a", {1, 2}, 2))->WaitUntilEnded();
}

TEST_F(EngineTest, RefusesMoreThanTheQueueHolds) {
  EngineOptions options;
  options.max_running_requests = 1;
  options.max_queued_requests = 2;
  Start(options);
  gate_->Close();
  const auto running = Submit(Greedy("running", {1, 2}, 2));
  gate_->WaitForStep();
  const auto first = Submit(Greedy("first", {1, 2}, 2));
  const auto second = Submit(Greedy("second", {1, 2}, 2));
  EXPECT_THAT(engine_->Submit(Greedy("third", {1, 2}, 2), std::make_shared<RecordingSink>()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("2 requests wait (--max-queued-requests)")));
  EXPECT_EQ(engine_->Load().waiting, 2);
  gate_->Open();
  first->WaitUntilEnded();
  Submit(Greedy("third", {1, 2}, 2))->WaitUntilEnded();
  second->WaitUntilEnded();
}

TEST_F(EngineTest, AStepThatNobodyWaitsForIsGivenUp) {
  Start();
  gate_->Close();
  const auto gone = Submit(Greedy("gone", std::vector<int32_t>(200, 1), 50));
  gate_->WaitForStep(1);
  EXPECT_TRUE(engine_->Abort("gone"));
  gate_->Open();
  gone->WaitUntilEnded();
  EXPECT_EQ(gone->sequence().last.finish, FinishReason::kAbort);
  EXPECT_EQ(gone->sequence().tokens.size(), 0u);
  EXPECT_EQ(runner_->num_interrupted(), 1);
}

TEST_F(EngineTest, AStepThatSomebodyElseNeedsGoesOn) {
  Start();
  const GenerateRequest request = Greedy("kept", {1, 2, 3}, 10);
  gate_->Close();
  const auto kept = Submit(request);
  gate_->WaitForStep(1);
  const auto gone = Submit(Greedy("gone", std::vector<int32_t>(40, 1), 100));
  gate_->PassOne();
  gate_->WaitForStep(2);
  EXPECT_TRUE(engine_->Abort("gone"));
  gate_->Open();
  kept->WaitUntilEnded();
  EXPECT_EQ(runner_->num_interrupted(), 0);
  const RequestLimits limits{64, 256, 256, 0};
  EXPECT_EQ(kept->sequence().tokens,
            testing::GenerateAlone(*runner_, request, 0, {}, limits).tokens);
}

TEST_F(EngineTest, TheStepAfterAnAbortDoesNotHoldTheRequest) {
  Start();
  gate_->Close();
  const auto kept = Submit(Greedy("kept", {1, 2, 3}, 50));
  gate_->WaitForStep(1);
  const auto gone = Submit(Greedy("gone", std::vector<int32_t>(40, 1), 100));
  gate_->PassOne();
  gate_->WaitForStep(2);
  EXPECT_TRUE(engine_->Abort("gone"));
  gate_->PassOne();
  gate_->WaitForStep(3);
  EXPECT_TRUE(gone->Ended());
  EXPECT_EQ(gone->sequence().last.finish, FinishReason::kAbort);
  EXPECT_FALSE(engine_->Abort("gone"));
  gate_->Open();
  kept->WaitUntilEnded();
  const std::vector<std::vector<int>> steps = gate_->steps();
  EXPECT_THAT(steps[1], ElementsAre(1, 40));
  for (size_t i = 2; i < steps.size(); ++i) EXPECT_THAT(steps[i], ElementsAre(1)) << i;
}

TEST_F(EngineTest, AbortReachesARequestThatStillQueues) {
  Start();
  gate_->Close();
  const auto running = Submit(Greedy("running", {1, 2}, 2));
  gate_->WaitForStep();
  const auto queued = Submit(Greedy("queued", {1, 2}, 2));
  EXPECT_TRUE(engine_->Abort("queued"));
  EXPECT_FALSE(engine_->Abort("unknown"));
  gate_->Open();
  queued->WaitUntilEnded();
  EXPECT_EQ(queued->sequence().last.finish, FinishReason::kAbort);
  EXPECT_TRUE(queued->sequence().tokens.empty());
  running->WaitUntilEnded();
}

TEST_F(EngineTest, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  Start();
  gate_->FailNext(absl::UnavailableError("worker 1 is gone"));
  const auto failed = Submit(Greedy("failed", {1, 2}, 5));
  failed->WaitUntilEnded();
  EXPECT_THAT(failed->error(), StatusIs(absl::StatusCode::kUnavailable, "worker 1 is gone"));
  const auto next = Submit(Greedy("failed", {1, 2}, 5));
  next->WaitUntilEnded();
  EXPECT_THAT(next->error(), IsOk());
}

TEST_F(EngineTest, DrainingFinishesWhatRunsAndRefusesTheRest) {
  Start();
  gate_->Close();
  const auto sink = Submit(Greedy("a", {1, 2}, 5));
  engine_->Drain();
  EXPECT_THAT(engine_->Submit(Greedy("b", {1, 2}, 5), std::make_shared<RecordingSink>()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  EXPECT_FALSE(engine_->Idle());
  gate_->Open();
  WaitUntilIdle();
  EXPECT_TRUE(sink->Ended());
  EXPECT_THAT(sink->error(), IsOk());
}

TEST_F(EngineTest, FlushDropsTheCacheOnlyWhenNothingRuns) {
  Start();
  gate_->Close();
  const auto first = Submit(Greedy("a", std::vector<int32_t>(20, 1), 5));
  EXPECT_FALSE(engine_->FlushCache());
  gate_->Open();
  first->WaitUntilEnded();
  const auto again = Submit(Greedy("b", std::vector<int32_t>(20, 1), 5));
  again->WaitUntilEnded();
  EXPECT_EQ(again->sequence().last.cached_tokens, 16);
  EXPECT_TRUE(engine_->FlushCache());
  const auto flushed = Submit(Greedy("c", std::vector<int32_t>(20, 1), 5));
  flushed->WaitUntilEnded();
  EXPECT_EQ(flushed->sequence().last.cached_tokens, 0);
}

TEST_F(EngineTest, DestructionEndsEverythingWithUnavailable) {
  EngineOptions options;
  options.max_running_requests = 1;
  // Texts that take far longer than the destructor's call.
  Start(options, {.max_context = 40000, .num_blocks = 10000});
  gate_->Close();
  const auto running = Submit(Greedy("running", {1, 2}, 39000));
  gate_->WaitForStep();
  const auto waiting = Submit(Greedy("waiting", {1, 2}, 39000));
  std::thread destroyer([&] { engine_.reset(); });
  gate_->Open();
  destroyer.join();
  for (const auto& sink : {running, waiting}) {
    EXPECT_THAT(sink->error(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  }
}

TEST_F(EngineTest, LoadTellsCapacityRateAndUse) {
  EngineOptions options;
  options.kv_cache_bytes = 12345;
  Start(options);
  Submit(Greedy("a", {1, 2}, 20))->WaitUntilEnded();
  WaitUntilIdle();
  const EngineLoad load = engine_->Load();
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.used_tokens, 0);
  EXPECT_EQ(load.total_tokens, 256);
  EXPECT_EQ(load.max_running, 64);
  EXPECT_EQ(load.kv_cache_bytes, 12345);
  EXPECT_DOUBLE_EQ(load.tokens_per_second, 20);
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(engine_->Load().tokens_per_second, 0);
}

TEST_F(EngineTest, ManyCallersAtOnceGetTheirOwnTexts) {
  EngineOptions options;
  options.max_running_requests = 4;
  options.chunked_prefill_size = 8;
  Start(options, {64, 64, 4, 24});
  constexpr int kThreads = 4;
  constexpr int kRequests = 40;
  const RequestLimits limits{64, 64, 96, 0};
  std::atomic<bool> stop = false;
  std::thread watcher([&] {
    while (!stop) {
      EXPECT_LE(engine_->Load().running, 4);
      engine_->Idle();
      engine_->FlushCache();
    }
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        GenerateRequest request =
            Greedy(absl::StrCat(t, "-", i), {t, 2, 3, 4, i}, 1 + (i * 7) % 40);
        request.sampling.n = 1 + i % 3;
        const auto sink = Submit(request);
        if (i % 5 == 0) {
          sink->WaitForDeltas(i % 3);
          engine_->Abort(request.id);
        }
        sink->WaitUntilEnded();
        if (i % 5 == 0) continue;
        EXPECT_EQ(sink->sequence().tokens,
                  testing::GenerateAlone(*runner_, request, 0, {}, limits).tokens);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  stop = true;
  watcher.join();
}

TEST(EngineCreate, RefusesBadOptions) {
  testing::FakeClock clock;
  const Logger logger(Severity::kError);
  prometheus::Registry registry;
  FrontendMetrics metrics(registry);
  FakeModelRunner runner;
  const auto message = [&](auto spoil) {
    EngineOptions options;
    spoil(options);
    const auto engine = Engine::Create(options, runner, clock, logger, metrics);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(engine.status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.max_running_requests = 0; }),
              HasSubstr("max_running_requests=0"));
  EXPECT_THAT(message([](auto& o) { o.max_queued_requests = -1; }),
              HasSubstr("max_queued_requests=-1"));
  EXPECT_THAT(message([](auto& o) { o.chunked_prefill_size = 0; }),
              HasSubstr("chunked_prefill_size=0"));
  EXPECT_THAT(message([](auto& o) { o.max_new_tokens_default = -1; }),
              HasSubstr("max_new_tokens_default=-1"));
  EXPECT_THAT(message([](auto& o) { o.eos_token_ids = {64}; }), HasSubstr("64"));
}

}  // namespace
}  // namespace atelier
