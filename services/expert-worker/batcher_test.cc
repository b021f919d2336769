#include "services/expert-worker/batcher.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_clock.h"
#include "libs/testing/status_matchers.h"
#include "services/expert-worker/batch_merger.h"
#include "services/expert-worker/fake_calls.h"

namespace atelier {
namespace {

using ::atelier::testing::CallSpec;
using ::atelier::testing::FakeContext;
using ::atelier::testing::IsOk;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BatcherTest : public ::testing::Test {
 protected:
  QueuedCall Call(const CallSpec& spec) {
    return {testing::MakeRequest(spec), context_, [](ForwardReply) {}, clock_.Now()};
  }
  static std::vector<uint64_t> Ids(const std::vector<QueuedCall>& calls) {
    std::vector<uint64_t> ids;
    for (const QueuedCall& call : calls) ids.push_back(call.request.id);
    return ids;
  }
  static CallSpec Decode(uint64_t id, int layer = 1) { return {.id = id, .layer = layer}; }
  static CallSpec Prefill(uint64_t id, int layer = 1, int num_tokens = 1) {
    return {.id = id, .layer = layer, .num_tokens = num_tokens, .priority = CallPriority::kPrefill};
  }

  testing::FakeClock clock_;
  std::shared_ptr<FakeContext> context_ = std::make_shared<FakeContext>();
};

TEST_F(BatcherTest, AnIdleQueueGivesItsOnlyCallAtOnce) {
  Batcher batcher({}, clock_);
  EXPECT_TRUE(batcher.Take().calls.empty());
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(1))));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1));
  EXPECT_TRUE(batcher.empty());
}

TEST_F(BatcherTest, MergesCallsOfTheOldestCallsLayer) {
  Batcher batcher({}, clock_);
  for (const auto& [id, layer] : {std::pair{1, 3}, {2, 5}, {3, 3}, {4, 5}, {5, 3}}) {
    ATELIER_ASSERT_OK(batcher.Add(Call(Decode(static_cast<uint64_t>(id), layer))));
  }
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1, 3, 5));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(2, 4));
  EXPECT_TRUE(batcher.Take().calls.empty());
}

TEST_F(BatcherTest, AFullBatchLeavesTheRestForTheNext) {
  Batcher batcher({.max_batch_tokens = 5}, clock_);
  for (const uint64_t id : {1, 2, 3, 4}) {
    ATELIER_ASSERT_OK(batcher.Add(Call({.id = id, .num_tokens = 2})));
  }
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 5, .num_tokens = 1})));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1, 2, 5));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(3, 4));
}

TEST_F(BatcherTest, ACallLargerThanABatchRunsAlone) {
  Batcher batcher({.max_queued_tokens = 5, .max_batch_tokens = 5}, clock_);
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 1, .num_tokens = 9})));
  EXPECT_THAT(batcher.Add(Call(Decode(2))),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("9 tokens")));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1));
  ATELIER_EXPECT_OK(batcher.Add(Call(Decode(2))));
}

TEST_F(BatcherTest, DecodeGoesBeforePrefillAndWithoutItsRows) {
  Batcher batcher({}, clock_);
  ATELIER_ASSERT_OK(batcher.Add(Call(Prefill(1))));
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(2))));
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(3, 2))));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(2));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(3));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1));
}

TEST_F(BatcherTest, PrefillIsNotStarvedAndTakesDecodeAlong) {
  Batcher batcher({.max_overtakes = 3}, clock_);
  ATELIER_ASSERT_OK(batcher.Add(Call(Prefill(1, 1, 4))));
  for (uint64_t id = 2; id < 5; ++id) {
    ATELIER_ASSERT_OK(batcher.Add(Call(Decode(id))));
    EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(id));
  }
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(5, 2))));
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(6, 1))));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(1, 6));
  EXPECT_THAT(Ids(batcher.Take().calls), ElementsAre(5));
}

TEST_F(BatcherTest, RefusesWhatExceedsItsBoundsNamingThem) {
  Batcher batcher({.max_queued_calls = 2, .max_queued_tokens = 10}, clock_);
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 1, .num_tokens = 8})));
  EXPECT_THAT(batcher.Add(Call({.id = 2, .num_tokens = 3})),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("num_tokens=3"), HasSubstr("max_queued_tokens=10"))));
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 3, .num_tokens = 2})));
  QueuedCall refused = Call(Decode(4));
  EXPECT_THAT(batcher.Add(std::move(refused)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_calls=2")));
  EXPECT_EQ(refused.request.id, 4u);  // still the caller's, to answer it
  ASSERT_NE(refused.reply, nullptr);
  EXPECT_THAT(Ids(batcher.TakeAll()), ElementsAre(1, 3));
  ATELIER_EXPECT_OK(batcher.Add(Call({.id = 5, .num_tokens = 10})));
}

TEST_F(BatcherTest, DropsCallsWhoseDeadlinePassedWhileTheyWaited) {
  Batcher batcher({}, clock_);
  QueuedCall late = Call(Decode(1));
  late.request.deadline = clock_.Now() + absl::Seconds(2);
  ATELIER_ASSERT_OK(batcher.Add(std::move(late)));
  ATELIER_ASSERT_OK(batcher.Add(Call(Decode(2))));
  clock_.Advance(absl::Seconds(2));
  const Batcher::Batch batch = batcher.Take();
  EXPECT_THAT(Ids(batch.calls), ElementsAre(2));
  ASSERT_EQ(batch.dropped.size(), 1u);
  EXPECT_EQ(batch.dropped[0].call.request.id, 1u);
  EXPECT_THAT(batch.dropped[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("2s")));
}

TEST_F(BatcherTest, DropsCallsOfClientsThatHaveGone) {
  Batcher batcher({.max_queued_tokens = 6}, clock_);
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 1, .num_tokens = 6})));
  context_->cancelled = true;
  const Batcher::Batch batch = batcher.Take();
  EXPECT_TRUE(batch.calls.empty());
  ASSERT_EQ(batch.dropped.size(), 1u);
  EXPECT_EQ(batch.dropped[0].status.code(), absl::StatusCode::kCancelled);
  context_->cancelled = false;
  ATELIER_ASSERT_OK(batcher.Add(Call({.id = 2, .num_tokens = 3})));
  EXPECT_THAT(batcher.Add(Call({.id = 3, .num_tokens = 3})), IsOk());  // its tokens were given back
}

TEST_F(BatcherTest, MergerPassesASingleCallOnWithoutACopy) {
  std::vector<QueuedCall> calls;
  calls.push_back(Call({.id = 1, .num_tokens = 3}));
  BatchMerger merger;
  const LayerBatch batch = merger.Merge(calls);
  EXPECT_EQ(batch.tokens.rows, calls[0].request.batch.rows);
  EXPECT_EQ(batch.routing.expert_ids, calls[0].request.routing.expert_ids);
}

TEST_F(BatcherTest, MergerLaysRowsOneAfterTheOtherAndPadsRouting) {
  std::vector<QueuedCall> calls;
  calls.push_back(Call({.id = 10, .num_tokens = 2, .top_k = 1}));
  calls.push_back(Call({.id = 20, .num_tokens = 1, .top_k = 3}));
  BatchMerger merger;
  for (int round = 0; round < 2; ++round) {  // the second time in memory that was used before
    const LayerBatch batch = merger.Merge(calls);
    ASSERT_EQ(batch.tokens.num_tokens, 3);
    ASSERT_EQ(batch.routing.top_k, 3);
    std::vector<float> first_column;
    for (int row = 0; row < 3; ++row) first_column.push_back(ToFloat(batch.tokens.rows[row * 2]));
    EXPECT_THAT(first_column, ElementsAre(10, 11, 20));
    EXPECT_THAT(std::vector<int32_t>(batch.routing.expert_ids, batch.routing.expert_ids + 9),
                ElementsAre(0, -1, -1, 1, -1, -1, 0, 1, 2));
    EXPECT_THAT(std::vector<float>(batch.routing.weights, batch.routing.weights + 9),
                ElementsAre(.5, 0, 0, .5, 0, 0, .5, .5, .5));
  }
}

// The same call as a frontend sends it whose rows are quantised before: codes of 127, scales as the
// rows.
QueuedCall Quantized(QueuedCall call) {
  struct Data {
    std::vector<int8_t> codes;
    std::vector<float> scales;
    std::shared_ptr<const void> rest;
  };
  auto data = std::make_shared<Data>();
  TokenBatch& batch = call.request.batch;
  const auto count = static_cast<size_t>(batch.num_tokens);
  data->codes.assign(count * static_cast<size_t>(batch.hidden_size), 127);
  for (size_t row = 0; row < count; ++row) {
    data->scales.push_back(ToFloat(batch.rows[row * static_cast<size_t>(batch.hidden_size)]));
  }
  data->rest = call.request.owner;
  batch.rows = nullptr;
  batch.num_quantized = batch.num_tokens;
  batch.quantized_form = ActivationForm::kInt8Row;
  batch.codes = data->codes.data();
  batch.scales = data->scales.data();
  call.request.owner = std::move(data);
  return call;
}

TEST_F(BatcherTest, MergerPutsQuantisedRowsLastAndSaysSo) {
  std::vector<QueuedCall> calls;
  calls.push_back(Quantized(Call({.id = 10, .num_tokens = 2, .top_k = 1})));
  calls.push_back(Call({.id = 20, .num_tokens = 1, .top_k = 3}));
  calls.push_back(Quantized(Call({.id = 30, .num_tokens = 1, .top_k = 2})));
  calls.push_back(Call({.id = 40, .num_tokens = 2, .top_k = 1}));
  BatchMerger merger;
  const LayerBatch batch = merger.Merge(calls);
  std::vector<uint64_t> ids;
  for (const QueuedCall& call : calls) ids.push_back(call.request.id);
  EXPECT_THAT(ids, ElementsAre(20, 40, 10, 30));
  ASSERT_EQ(batch.tokens.num_tokens, 6);
  ASSERT_EQ(batch.tokens.num_quantized, 3);
  EXPECT_EQ(batch.tokens.quantized_form, ActivationForm::kInt8Row);
  std::vector<float> first_column;
  for (int row = 0; row < 3; ++row) first_column.push_back(ToFloat(batch.tokens.rows[row * 2]));
  EXPECT_THAT(first_column, ElementsAre(20, 40, 41));
  EXPECT_THAT(std::vector<float>(batch.tokens.scales, batch.tokens.scales + 3),
              ElementsAre(10, 11, 30));
  EXPECT_THAT(std::vector<int>(batch.tokens.codes, batch.tokens.codes + 6), ::testing::Each(127));
  EXPECT_THAT(std::vector<int32_t>(batch.routing.expert_ids, batch.routing.expert_ids + 18),
              ElementsAre(0, 1, 2, 0, -1, -1, 1, -1, -1, 0, -1, -1, 1, -1, -1, 0, 1, -1));
}

TEST_F(BatcherTest, MergerOfQuantisedCallsAloneHasNoOtherRows) {
  std::vector<QueuedCall> calls;
  calls.push_back(Quantized(Call({.id = 10, .num_tokens = 2})));
  calls.push_back(Quantized(Call({.id = 30, .num_tokens = 1})));
  BatchMerger merger;
  const LayerBatch batch = merger.Merge(calls);
  EXPECT_EQ(batch.tokens.num_tokens, 3);
  EXPECT_EQ(batch.tokens.num_quantized, 3);
  EXPECT_THAT(std::vector<float>(batch.tokens.scales, batch.tokens.scales + 3),
              ElementsAre(10, 11, 30));
}

TEST_F(BatcherTest, SumsAreEncodedByRowsAndType) {
  const std::vector<float> sums = {1, 2, 3, 4, 5, 6.03125f};
  const std::string fp32 = EncodeSums(sums.data(), 1, 2, 2, DType::kF32);
  ASSERT_EQ(fp32.size(), 16u);
  float last = 0;
  std::memcpy(&last, fp32.data() + 12, 4);
  EXPECT_EQ(last, 6.03125f);
  const std::string bf16 = EncodeSums(sums.data(), 1, 2, 2, DType::kBF16);
  ASSERT_EQ(bf16.size(), 8u);
  BFloat16 rounded;
  std::memcpy(&rounded, bf16.data() + 6, 2);
  EXPECT_EQ(ToFloat(rounded), 6.03125f);
}

TEST_F(BatcherTest, NonFiniteRowsAreCountedOncePerRow) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> first = {1, nan, 1, 1, infinity, 1, nan, nan};
  std::vector<float> second = {1, nan, 1, 1, 1, 1, 1, 1};
  const std::vector<float*> sums = {first.data(), second.data()};
  EXPECT_EQ(CountNonFiniteRows(sums, 0, 4, 2), 3);
  EXPECT_EQ(CountNonFiniteRows(sums, 1, 1, 2), 0);
}

}  // namespace
}  // namespace atelier
