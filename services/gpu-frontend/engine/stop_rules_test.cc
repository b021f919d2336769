#include "services/gpu-frontend/engine/stop_rules.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Verdict = StopRules::Verdict;

TEST(StopRules, EndOfSequenceWinsOverTheSameStopToken) {
  SamplingOptions options;
  options.stop_token_ids = {9, 5, 9, 7};
  const StopRules rules(options, {7, 2});
  EXPECT_EQ(rules.Judge(7), Verdict::kEndOfSequence);
  EXPECT_EQ(rules.Judge(2), Verdict::kEndOfSequence);
  EXPECT_EQ(rules.Judge(5), Verdict::kStopToken);
  EXPECT_EQ(rules.Judge(9), Verdict::kStopToken);
  EXPECT_EQ(rules.Judge(1), Verdict::kContinue);
}

TEST(StopRules, IgnoringEndOfSequenceLeavesTheStopList) {
  SamplingOptions options;
  options.stop_token_ids = {7};
  options.ignore_eos = true;
  const StopRules rules(options, {7, 2});
  EXPECT_EQ(rules.Judge(7), Verdict::kStopToken);
  EXPECT_EQ(rules.Judge(2), Verdict::kContinue);
}

TEST(StopRules, EverythingThatWouldEndTooEarlyIsForbidden) {
  SamplingOptions options;
  options.stop_token_ids = {9, 7, 9};
  options.min_new_tokens = 2;
  const StopRules rules(options, {7, 2});
  EXPECT_THAT(rules.Forbidden(0), ElementsAre(2, 7, 9));
  EXPECT_THAT(rules.Forbidden(1), ElementsAre(2, 7, 9));
  EXPECT_THAT(rules.Forbidden(2), IsEmpty());
  options.ignore_eos = true;
  EXPECT_THAT(StopRules(options, {7, 2}).Forbidden(0), ElementsAre(7, 9));
}

}  // namespace
}  // namespace atelier
