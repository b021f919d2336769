#include "services/gpu-frontend/engine/engine_core.h"

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
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

using ::testing::ElementsAre;
using testing::FakeModelOptions;
using testing::FakeModelRunner;
using testing::GenerateAlone;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecordedSequence;
using testing::RecordingSink;
using ::testing::SizeIs;
using testing::StatusIs;
using testing::TextAlone;

constexpr int32_t kEos = 7;

// An engine core over a fake model, and what its requests received.
class Harness {
 public:
  explicit Harness(EngineOptions options = {}, FakeModelOptions model = {})
      : runner_(model),
        options_(WithEos(options)),
        core_(options_, runner_, clock_, logger_, metrics_, [](const std::string&) {}) {}

  std::shared_ptr<RecordingSink> Add(GenerateRequest request) {
    if (request.id.empty()) request.id = absl::StrCat("r", num_added_);
    ++num_added_;
    EXPECT_THAT(ValidateRequest(request, core_.limits()), testing::IsOk());
    auto sink = std::make_shared<RecordingSink>(request.sampling.n);
    core_.Add({std::move(request), sink, clock_.Now()});
    return sink;
  }
  void Step() {
    core_.Step();
    ASSERT_THAT(core_.CheckInvariants(), testing::IsOk());
  }
  void RunAll() {
    constexpr int kTooMany = 100000;
    for (int i = 0; !core_.empty(); ++i) {
      ASSERT_LT(i, kTooMany) << "no end in sight";
      ASSERT_NO_FATAL_FAILURE(Step());
    }
  }
  TextAlone Alone(const GenerateRequest& request, int index = 0) const {
    return GenerateAlone(runner_, request, index, {kEos}, core_.limits());
  }

  FakeModelRunner& runner() { return runner_; }
  EngineCore& core() { return core_; }
  FrontendMetrics& metrics() { return metrics_; }

 private:
  static EngineOptions WithEos(EngineOptions options) {
    options.eos_token_ids = {kEos};
    return options;
  }

  FakeModelRunner runner_;
  testing::FakeClock clock_;
  Logger logger_{Severity::kError};
  prometheus::Registry registry_;
  FrontendMetrics metrics_{registry_};
  EngineOptions options_;
  EngineCore core_;
  int num_added_ = 0;
};

GenerateRequest Greedy(std::vector<int32_t> prompt, int max_new_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

std::vector<int32_t> Range(int first, int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = (first + i) % 64;
  return tokens;
}

void ExpectSameText(const RecordedSequence& got, const TextAlone& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.last.finish, want.finish);
  EXPECT_EQ(got.last.matched_token, want.matched_token);
  EXPECT_EQ(got.last.completion_tokens, want.completion_tokens);
}

TEST(EngineCore, GeneratesWhatTheModelSays) {
  Harness harness;
  const GenerateRequest request = Greedy({1, 2, 3}, 10);
  const auto sink = harness.Add(request);
  harness.RunAll();
  ExpectSameText(sink->sequence(), harness.Alone(request));
  EXPECT_THAT(sink->sequence().tokens, SizeIs(10));
}

// ---- random traffic ----

struct Traffic {
  const char* name;
  EngineOptions engine;
  FakeModelOptions model;
  int percent_failing_steps;
};

EngineOptions MakeEngine(int max_running, int chunk, bool prefix_cache) {
  EngineOptions options;
  options.max_running_requests = max_running;
  options.chunked_prefill_size = chunk;
  options.prefix_cache = prefix_cache;
  return options;
}

class RandomRequests {
 public:
  explicit RandomRequests(uint64_t seed) : random_(seed) {}

  int Below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  bool Percent(int percent) { return Below(100) < percent; }

  GenerateRequest Next(int id, int max_total) {
    GenerateRequest request;
    request.id = absl::StrCat("r", id);
    // Few different beginnings, so that prefixes are shared.
    request.prompt = Range(Below(3), 1 + Below(max_total * 2 / 3));
    const int own = std::min(Below(6), static_cast<int>(request.prompt.size()));
    for (int i = 0; i < own; ++i) request.prompt[request.prompt.size() - 1 - i] = Below(64);
    SamplingOptions& s = request.sampling;
    s.temperature = Percent(40) ? 0.0f : 1.0f;
    if (Percent(30)) s.top_k = 1 + Below(8);
    if (Percent(30)) s.top_p = 0.8f;
    if (Percent(20)) s.repetition_penalty = 1.3f;
    if (Percent(20)) s.frequency_penalty = 0.5f;
    s.seed = random_();
    s.ignore_eos = Percent(30);
    if (Percent(80)) s.max_new_tokens = Below(max_total);
    if (Percent(20)) s.min_new_tokens = std::min(Below(8), s.max_new_tokens.value_or(8));
    if (Percent(30)) s.stop_token_ids = {Below(64), kEos, Below(64)};
    if (Percent(25)) s.n = 1 + Below(4);
    if (Percent(15)) request.logprobs.prompt_start = Below(static_cast<int>(request.prompt.size()));
    request.logprobs.enabled = Percent(20);
    return request;
  }

 private:
  std::mt19937_64 random_;
};

class RandomTraffic : public ::testing::TestWithParam<Traffic> {
 protected:
  struct Sent {
    GenerateRequest request;
    std::shared_ptr<RecordingSink> sink;
    bool aborted = false;
  };

  void Arrive() {
    Sent sent;
    sent.request = random_.Next(static_cast<int>(sent_.size()),
                                harness_.core().limits().max_sequence_tokens());
    sent.sink = harness_.Add(sent.request);
    sent_.push_back(std::move(sent));
  }
  void AbortOne() {
    if (sent_.empty()) return;
    Sent& sent = sent_[static_cast<size_t>(random_.Below(static_cast<int>(sent_.size())))];
    const bool was_alive = !sent.sink->Ended();
    EXPECT_EQ(harness_.core().Abort(sent.request.id), was_alive);
    EXPECT_TRUE(sent.sink->Ended());
    sent.aborted |= was_alive;
  }
  void CheckSequence(const Sent& sent, int index) {
    const TextAlone alone = harness_.Alone(sent.request, index);
    const RecordedSequence got = sent.sink->sequence(index);
    SCOPED_TRACE(absl::StrCat(sent.request.id, " index ", index, " of ", sent.request.sampling.n));
    const bool cut_short = !sent.sink->error().ok() || got.last.finish == FinishReason::kAbort;
    if (!cut_short) return ExpectSameText(got, alone);
    ASSERT_LE(got.tokens.size(), alone.tokens.size());
    EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), alone.tokens.begin()));
  }

  const uint64_t seed_ = 20261202;
  RandomRequests random_{seed_};
  Harness harness_{GetParam().engine, GetParam().model};
  std::vector<Sent> sent_;
};

TEST_P(RandomTraffic, EveryTextIsTheOneComputedAlone) {
  std::cout << "seed=" << seed_ << "\n";
  int num_failed_steps = 0;
  harness_.runner().set_before_step([&](absl::Span<const SequenceStep>) {
    if (!random_.Percent(GetParam().percent_failing_steps)) return absl::OkStatus();
    ++num_failed_steps;
    return absl::UnavailableError("injected");
  });
  constexpr int kSteps = 3000;
  for (int i = 0; i < kSteps; ++i) {
    if (sent_.empty() || random_.Percent(25)) Arrive();
    if (random_.Percent(2)) AbortOne();
    if (random_.Percent(1)) harness_.core().FlushCache();
    if (harness_.core().empty()) continue;
    ASSERT_NO_FATAL_FAILURE(harness_.Step());
  }
  ASSERT_NO_FATAL_FAILURE(harness_.RunAll());
  int num_errors = 0;
  for (const Sent& sent : sent_) {
    ASSERT_TRUE(sent.sink->Ended());
    if (!sent.sink->error().ok()) {
      ++num_errors;
      EXPECT_THAT(sent.sink->error(), StatusIs(absl::StatusCode::kUnavailable, "injected"));
    }
    for (int index = 0; index < sent.request.sampling.n; ++index) CheckSequence(sent, index);
  }
  EXPECT_EQ(num_errors > 0, GetParam().percent_failing_steps > 0);
  EXPECT_EQ(harness_.core().Load().used_tokens, 0);
  std::cout << "requests=" << sent_.size() << " failed_steps=" << num_failed_steps
            << " preemptions=" << harness_.metrics().preemptions.Value()
            << " cached_tokens=" << harness_.metrics().cached_tokens.Value() << "\n";
}

INSTANTIATE_TEST_SUITE_P(
    , RandomTraffic,
    ::testing::Values(Traffic{"Roomy", MakeEngine(16, 32, true), {64, 128, 4, 1000}, 0},
                      Traffic{"Tight", MakeEngine(8, 16, true), {64, 64, 4, 24}, 0},
                      Traffic{"TightWithoutCache", MakeEngine(8, 16, false), {64, 64, 4, 24}, 0},
                      Traffic{"BarelyOne", MakeEngine(8, 7, true), {64, 64, 4, 16}, 0},
                      Traffic{"BarelyOneWithoutCache", MakeEngine(8, 7, false), {64, 64, 4, 16}, 0},
                      Traffic{"SmallerThanTheContext", MakeEngine(4, 5, true), {64, 64, 4, 9}, 0},
                      Traffic{"BlocksOfOne", MakeEngine(8, 1, true), {64, 32, 1, 40}, 0},
                      Traffic{"LargeBlocks", MakeEngine(8, 64, true), {64, 64, 16, 5}, 0},
                      Traffic{"Failing", MakeEngine(8, 16, true), {64, 64, 4, 30}, 5},
                      Traffic{"FailingWithoutCache", MakeEngine(8, 16, false), {64, 64, 4, 30}, 5}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace atelier
