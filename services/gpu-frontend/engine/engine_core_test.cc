#include "services/gpu-frontend/engine/engine_core.h"

#include <algorithm>
#include <iostream>
#include <numeric>
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
    core_.PlanStep();
    core_.RunStep();
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
  testing::FakeClock& clock() { return clock_; }
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

EngineOptions MakeEngine(int max_running, int chunk, bool prefix_cache) {
  EngineOptions options;
  options.max_running_requests = max_running;
  options.chunked_prefill_size = chunk;
  options.prefix_cache = prefix_cache;
  return options;
}

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

// Lets every token of a step cost `per_token`; returns what the steps held and how long they took.
struct TimedSteps {
  std::vector<std::vector<int>> sizes;
  std::vector<absl::Duration> took;
};
std::shared_ptr<TimedSteps> TimeSteps(Harness& harness, absl::Duration per_token) {
  auto steps = std::make_shared<TimedSteps>();
  harness.runner().set_before_step(
      [&harness, steps, per_token](absl::Span<const SequenceStep> chunks) {
        std::vector<int> sizes;
        for (const SequenceStep& c : chunks) sizes.push_back(static_cast<int>(c.tokens.size()));
        const absl::Duration took = std::accumulate(sizes.begin(), sizes.end(), 0) * per_token;
        harness.clock().Advance(took);
        steps->sizes.push_back(std::move(sizes));
        steps->took.push_back(took);
        return absl::OkStatus();
      });
  return steps;
}

TEST(EngineCore, ALongPromptHoldsAnotherStreamForAboutTheStepTime) {
  EngineOptions options;
  options.max_step_time = absl::Milliseconds(100);
  Harness harness(options, {64, 1024, 4, 512});
  const auto steps = TimeSteps(harness, absl::Milliseconds(4));
  const GenerateRequest stream = Greedy(Range(0, 8), 100);
  const GenerateRequest long_prompt = Greedy(Range(8, 600), 3);
  const auto streaming = harness.Add(stream);
  harness.Step();
  const auto prompt = harness.Add(long_prompt);
  harness.RunAll();
  // The first shared step knows what prompt tokens cost, not yet what the stream's token adds.
  EXPECT_EQ(steps->sizes[1], (std::vector<int>{1, 25}));
  EXPECT_EQ(*std::max_element(steps->took.begin() + 2, steps->took.end()), absl::Milliseconds(100));
  ExpectSameText(streaming->sequence(), harness.Alone(stream));
  ExpectSameText(prompt->sequence(), harness.Alone(long_prompt));
}

TEST(EngineCore, ALoneLongPromptIsComputedInWholeChunks) {
  EngineOptions options;
  options.max_step_time = absl::Milliseconds(100);
  Harness harness(options, {64, 1024, 4, 512});
  const auto steps = TimeSteps(harness, absl::Milliseconds(4));
  harness.Add(Greedy(Range(8, 600), 1));
  harness.RunAll();
  EXPECT_THAT(steps->sizes, ElementsAre(ElementsAre(512), ElementsAre(88)));
}

TEST(EngineCore, AFailedStepSaysNothingOfWhatTokensCost) {
  EngineOptions options;
  options.max_step_time = absl::Milliseconds(100);
  Harness harness(options, {64, 1024, 4, 512});
  const auto steps = TimeSteps(harness, absl::Milliseconds(4));
  harness.Add(Greedy(Range(8, 600), 1));
  harness.Step();
  harness.runner().set_before_step([&](absl::Span<const SequenceStep>) {
    harness.clock().Advance(absl::Seconds(10));
    return absl::UnavailableError("experts gone");
  });
  harness.Step();
  const auto again = TimeSteps(harness, absl::Milliseconds(4));
  harness.Add(Greedy(Range(1, 8), 5));
  harness.Add(Greedy(Range(2, 600), 1));
  harness.Step();
  EXPECT_THAT(again->took, ElementsAre(absl::Milliseconds(100)));
}

TEST(EngineCore, ATokenADeltaWithRunningCounts) {
  Harness harness;
  const auto sink = harness.Add(Greedy({1, 2, 3}, 4));
  harness.RunAll();
  const RecordedSequence got = sink->sequence();
  EXPECT_EQ(got.num_deltas, 4);
  EXPECT_EQ(got.last.prompt_tokens, 3);
  EXPECT_EQ(got.last.completion_tokens, 4);
  EXPECT_EQ(got.last.finish, FinishReason::kLength);
  EXPECT_EQ(got.last.matched_token, std::nullopt);
}

// The greedy text of `prompt` with nothing that ends it.
std::vector<int32_t> FreeText(const std::vector<int32_t>& prompt, int size) {
  Harness harness;
  return harness.Alone(Greedy(prompt, size)).tokens;
}

TEST(EngineCore, EndOfSequenceIsCountedButNoPartOfTheText) {
  const std::vector<int32_t> text = FreeText({1, 2, 3}, 6);
  GenerateRequest request = Greedy({1, 2, 3}, 20);
  request.sampling.ignore_eos = false;
  // The bias makes the end certain from the first token on; min_new_tokens puts it off.
  request.sampling.logit_bias = {{kEos, 100.0f}};
  request.sampling.min_new_tokens = 6;
  Harness harness;
  const auto sink = harness.Add(request);
  harness.RunAll();
  const RecordedSequence got = sink->sequence();
  EXPECT_EQ(got.tokens, text);
  EXPECT_EQ(got.last.finish, FinishReason::kStop);
  EXPECT_EQ(got.last.matched_token, kEos);
  EXPECT_EQ(got.last.completion_tokens, 7);
  EXPECT_THAT(got.last.tokens, IsEmpty());
}

TEST(EngineCore, AStopTokenIsTheLastOfTheText) {
  const std::vector<int32_t> text = FreeText({1, 2, 3}, 6);
  const int32_t stop = text[3];
  const auto first = std::find(text.begin(), text.end(), stop);
  GenerateRequest request = Greedy({1, 2, 3}, 20);
  request.sampling.stop_token_ids = {stop, stop};
  Harness harness;
  const auto sink = harness.Add(request);
  harness.RunAll();
  const RecordedSequence got = sink->sequence();
  EXPECT_EQ(got.tokens, std::vector<int32_t>(text.begin(), first + 1));
  EXPECT_EQ(got.last.finish, FinishReason::kStop);
  EXPECT_EQ(got.last.matched_token, stop);
}

TEST(EngineCore, AStopTokenAtTheLengthLimitCountsAsStop) {
  const std::vector<int32_t> text = FreeText({1, 2, 3}, 1);
  GenerateRequest request = Greedy({1, 2, 3}, 1);
  request.sampling.stop_token_ids = {text[0]};
  Harness harness;
  const auto sink = harness.Add(request);
  harness.RunAll();
  EXPECT_EQ(sink->sequence().last.finish, FinishReason::kStop);
}

TEST(EngineCore, TheContextsEndEndsTheText) {
  Harness harness({}, {64, 16, 4, 64});
  GenerateRequest request = Greedy({1, 2, 3}, 1000);
  const auto asked = harness.Add(request);
  request.sampling.max_new_tokens.reset();
  const auto unset = harness.Add(request);
  harness.RunAll();
  for (const auto& sink : {asked, unset}) {
    EXPECT_THAT(sink->sequence().tokens, SizeIs(13));
    EXPECT_EQ(sink->sequence().last.finish, FinishReason::kLength);
  }
}

TEST(EngineCore, NothingToGenerateEndsAtOnce) {
  Harness harness;
  GenerateRequest request = Greedy({1, 2, 3}, 0);
  request.sampling.n = 2;
  const auto sink = harness.Add(request);
  EXPECT_TRUE(harness.core().empty());
  EXPECT_EQ(harness.core().num_queued(), 0);
  for (const int index : {0, 1}) {
    EXPECT_EQ(sink->sequence(index).last.finish, FinishReason::kLength);
    EXPECT_EQ(sink->sequence(index).last.completion_tokens, 0);
  }
}

// Log-probabilities of positions start, … of the prompt, from the model's rows.
void ExpectPromptLogprobs(const FakeModelRunner& runner, const GenerateRequest& request,
                          const RecordedSequence& got) {
  const int start = request.logprobs.prompt_start;
  const int size = static_cast<int>(request.prompt.size());
  ASSERT_THAT(got.prompt_logprobs, SizeIs(size - start));
  for (int p = start; p < size; ++p) {
    SCOPED_TRACE(p);
    const TokenLogprob& l = got.prompt_logprobs[static_cast<size_t>(p - start)];
    const int32_t token = request.prompt[static_cast<size_t>(p)];
    EXPECT_EQ(l.token, token);
    if (p == 0) {
      EXPECT_EQ(l.logprob, std::nullopt);
      EXPECT_THAT(l.top, IsEmpty());
      continue;
    }
    const TokenLogprob want =
        LogprobOf(token, request.logprobs.top,
                  runner.LogitsAfter(absl::MakeConstSpan(request.prompt).first(p)))
            .value();
    EXPECT_EQ(l.logprob, want.logprob);
    EXPECT_EQ(l.top, want.top);
  }
}

TEST(EngineCore, PromptLogprobsComeWithTheFirstDeltaWhateverTheChunks) {
  for (const int chunk : {1, 3, 100}) {
    for (const int start : {0, 1, 5, 19}) {
      for (const int max_new_tokens : {0, 2}) {
        SCOPED_TRACE(absl::StrCat("chunk ", chunk, " start ", start, " max ", max_new_tokens));
        Harness harness(MakeEngine(4, chunk, true));
        harness.Add(Greedy(Range(0, 20), 1));  // leaves the prompt in the prefix cache
        harness.RunAll();
        GenerateRequest request = Greedy(Range(0, 20), max_new_tokens);
        request.logprobs.prompt_start = start;
        request.logprobs.top = 2;
        request.sampling.n = 2;
        const auto sink = harness.Add(request);
        harness.RunAll();
        ExpectPromptLogprobs(harness.runner(), request, sink->sequence(0));
        EXPECT_THAT(sink->sequence(1).prompt_logprobs, IsEmpty());
        ExpectSameText(sink->sequence(1), harness.Alone(request));
      }
    }
  }
}

TEST(EngineCore, LogprobsAreOfTheRawLogits) {
  Harness harness;
  GenerateRequest request = Greedy({1, 2, 3}, 5);
  request.sampling.temperature = 0.5f;
  request.sampling.seed = 3;
  request.sampling.logit_bias = {{5, 2.0f}};
  request.logprobs.enabled = true;
  request.logprobs.top = 4;
  const auto sink = harness.Add(request);
  harness.RunAll();
  const RecordedSequence got = sink->sequence();
  ASSERT_THAT(got.logprobs, SizeIs(5));
  std::vector<int32_t> all = request.prompt;
  for (size_t i = 0; i < 5; ++i) {
    const TokenLogprob want =
        LogprobOf(got.tokens[i], 4, harness.runner().LogitsAfter(all)).value();
    EXPECT_EQ(got.logprobs[i].token, got.tokens[i]);
    EXPECT_EQ(got.logprobs[i].logprob, want.logprob);
    EXPECT_EQ(got.logprobs[i].top, want.top);
    all.push_back(got.tokens[i]);
  }
}

TEST(EngineCore, SequencesOfARequestDifferAndRepeatWithTheSeed) {
  GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6}, 8);
  request.sampling.temperature = 1;
  request.sampling.n = 3;
  request.sampling.seed = 77;
  Harness harness;
  const auto first = harness.Add(request);
  const auto second = harness.Add(request);
  request.sampling.seed.reset();
  const auto fresh = harness.Add(request);
  const auto other_fresh = harness.Add(request);
  harness.RunAll();
  EXPECT_NE(first->sequence(0).tokens, first->sequence(1).tokens);
  EXPECT_NE(first->sequence(1).tokens, first->sequence(2).tokens);
  for (const int index : {0, 1, 2}) {
    EXPECT_EQ(first->sequence(index).tokens, second->sequence(index).tokens);
    EXPECT_NE(first->sequence(index).tokens, fresh->sequence(index).tokens);
    EXPECT_NE(fresh->sequence(index).tokens, other_fresh->sequence(index).tokens);
  }
}

TEST(EngineCore, CachedTokensAreThoseFoundWhenTheRequestCame) {
  Harness harness;
  GenerateRequest request = Greedy(Range(0, 18), 2);
  request.sampling.n = 2;
  const auto first = harness.Add(request);
  harness.RunAll();
  const auto second = harness.Add(request);
  harness.RunAll();
  EXPECT_EQ(first->sequence(0).last.cached_tokens, 0);
  EXPECT_EQ(first->sequence(1).last.cached_tokens, 0);
  EXPECT_EQ(second->sequence(0).last.cached_tokens, 16);
  EXPECT_EQ(second->sequence(1).last.cached_tokens, 16);
  EXPECT_DOUBLE_EQ(harness.core().Load().cache_hit_rate, 16.0 / 36);
  ASSERT_TRUE(harness.core().FlushCache());
  const auto third = harness.Add(request);
  EXPECT_FALSE(harness.core().FlushCache());
  harness.RunAll();
  EXPECT_EQ(third->sequence(0).last.cached_tokens, 0);
}

TEST(EngineCore, AFailedStepEndsExactlyTheRequestsInIt) {
  Harness harness(MakeEngine(1, 100, true));
  bool fail = false;
  harness.runner().set_before_step([&](absl::Span<const SequenceStep>) {
    return fail ? absl::UnavailableError("experts gone") : absl::OkStatus();
  });
  GenerateRequest request = Greedy({1, 2, 3}, 5);
  request.sampling.n = 2;  // the second one waits
  const auto in_step = harness.Add(request);
  const auto waiting = harness.Add(Greedy({4, 5}, 5));
  harness.Step();
  fail = true;
  harness.Step();
  fail = false;
  EXPECT_THAT(in_step->error(), StatusIs(absl::StatusCode::kUnavailable, "experts gone"));
  EXPECT_FALSE(waiting->Ended());
  harness.RunAll();
  ExpectSameText(waiting->sequence(), harness.Alone(Greedy({4, 5}, 5)));
  EXPECT_EQ(harness.metrics().RequestsWith("error").Value(), 1);
  EXPECT_EQ(harness.metrics().RequestsWith("length").Value(), 1);
}

TEST(EngineCore, LogitsWithoutAnyNumberEndTheRequestWithInternal) {
  Harness harness;
  GenerateRequest request = Greedy({1, 2, 3}, 5);
  // Together with the end of sequence all there are, and none may come yet.
  for (int32_t token = 0; token < 64; ++token) {
    if (token != kEos) request.sampling.stop_token_ids.push_back(token);
  }
  request.sampling.ignore_eos = false;
  request.sampling.min_new_tokens = 2;
  const auto sink = harness.Add(request);
  const auto other = harness.Add(Greedy({4, 5}, 5));
  harness.RunAll();
  EXPECT_THAT(sink->error(), StatusIs(absl::StatusCode::kInternal, HasSubstr("logits")));
  EXPECT_THAT(other->error(), testing::IsOk());
}

TEST(EngineCore, AbortEndsEverySequenceWhereverItIs) {
  Harness harness(MakeEngine(2, 100, true));
  GenerateRequest request = Greedy({1, 2, 3}, 50);
  request.id = "gone";
  request.sampling.n = 3;
  const auto sink = harness.Add(request);
  for (int i = 0; i < 4; ++i) harness.Step();
  EXPECT_TRUE(harness.core().Abort("gone"));
  EXPECT_FALSE(harness.core().Abort("gone"));
  EXPECT_TRUE(harness.core().empty());
  for (const int index : {0, 1, 2}) {
    EXPECT_EQ(sink->sequence(index).last.finish, FinishReason::kAbort);
  }
  EXPECT_GT(sink->sequence(0).tokens.size(), 0u);
  EXPECT_THAT(sink->sequence(2).tokens, IsEmpty());
  EXPECT_EQ(harness.core().Load().used_tokens, 0);
}

TEST(EngineCore, CountsWhatItDoes) {
  Harness harness;
  harness.Add(Greedy({1, 2, 3}, 5));
  harness.Add(Greedy({4, 5}, 3));
  EXPECT_EQ(harness.core().num_queued(), 2);
  EXPECT_EQ(harness.core().Load().waiting_uncached_tokens, 5);
  harness.Step();
  EXPECT_EQ(harness.core().num_queued(), 0);
  EXPECT_EQ(harness.core().Load().running, 2);
  EXPECT_EQ(harness.core().Load().used_tokens, 8);
  harness.RunAll();
  EXPECT_EQ(harness.metrics().prompt_tokens.Value(), 5);
  EXPECT_EQ(harness.metrics().generated_tokens.Value(), 8);
  EXPECT_EQ(harness.metrics().steps.Value(), 5);
  EXPECT_EQ(harness.metrics().RequestsWith("length").Value(), 2);
}

// ---- random traffic ----

struct Traffic {
  const char* name;
  EngineOptions engine;
  FakeModelOptions model;
  int percent_failing_steps;
};

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
