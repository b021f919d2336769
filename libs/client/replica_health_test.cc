#include "libs/client/replica_health.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/client/hedge_budget.h"
#include "libs/client/latency_history.h"
#include "libs/testing/fake_clock.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;

TEST(LatencyHistory, GivesTheLongestOfFewAnswers) {
  LatencyHistory history;
  EXPECT_FALSE(history.UsualFor(1).has_value());
  for (const int ms : {2, 3, 1, 7, 5}) history.Add(1, absl::Milliseconds(ms));
  EXPECT_EQ(history.UsualFor(1)->p95, absl::Milliseconds(7));
  EXPECT_FALSE(history.UsualFor(1)->guessed);
}

TEST(LatencyHistory, GivesThe95thPercentileOfTheLatest) {
  LatencyHistory history;
  for (int i = 1; i <= 64; ++i) history.Add(1, absl::Milliseconds(i));
  EXPECT_EQ(history.UsualFor(1)->p95, absl::Milliseconds(61));
  for (int i = 0; i < 64; ++i) history.Add(1, absl::Milliseconds(2));
  EXPECT_EQ(history.UsualFor(1)->p95, absl::Milliseconds(2));
}

TEST(LatencyHistory, UnknownSizesAreGuessedFromOthers) {
  LatencyHistory history;
  history.Add(4, absl::Milliseconds(3));
  EXPECT_EQ(history.UsualFor(7)->p95, absl::Milliseconds(3));  // as 4
  EXPECT_FALSE(history.UsualFor(7)->guessed);
  EXPECT_EQ(history.UsualFor(32)->p95, absl::Milliseconds(24));  // in proportion
  EXPECT_TRUE(history.UsualFor(32)->guessed);
  EXPECT_EQ(history.UsualFor(1)->p95, absl::Milliseconds(3));                    // at most
  EXPECT_EQ(history.UsualFor(1 << 20)->p95, absl::Milliseconds(3) * (1 << 13));  // the last size
}

TEST(LatencyHistory, AGuessIsNotAboveWhatLargerCallsTake) {
  LatencyHistory history;
  history.Add(1, absl::Milliseconds(30));
  EXPECT_EQ(history.UsualFor(16)->p95, absl::Milliseconds(480));
  history.Add(64, absl::Milliseconds(40));
  EXPECT_EQ(history.UsualFor(16)->p95, absl::Milliseconds(40));
  EXPECT_EQ(history.UsualFor(128)->p95, absl::Milliseconds(80));
}

TEST(HedgeBudget, IsAShareOfTheCalls) {
  HedgeBudget budget(0.05);
  int spent = 0;
  for (int i = 0; i < 10000; ++i) {
    budget.CountCall();
    spent += budget.Spend() ? 1 : 0;
  }
  EXPECT_LE(spent, 501);  // one was there at the start
  EXPECT_GE(spent, 499);
}

TEST(HedgeBudget, SavesOnlyAFew) {
  HedgeBudget budget(0.05);
  for (int i = 0; i < 10000; ++i) budget.CountCall();
  int spent = 0;
  while (budget.Spend()) ++spent;
  EXPECT_EQ(spent, 10);
}

TEST(HedgeBudget, OfNothingAllowsNothing) {
  HedgeBudget budget(0);
  for (int i = 0; i < 1000; ++i) budget.CountCall();
  EXPECT_FALSE(budget.Spend());
}

class ReplicaHealthTest : public ::testing::Test {
 protected:
  void Answers(size_t worker, absl::Duration latency) {
    for (int i = 0; i < 8; ++i) health_.Answered(worker, 1, latency);
  }

  testing::FakeClock clock_;
  FailoverOptions options_;
  std::vector<std::pair<size_t, bool>> told_;
  ReplicaHealth health_{4, options_, clock_, [this](size_t worker, bool ejected) {
                          told_.emplace_back(worker, ejected);
                        }};
};

TEST_F(ReplicaHealthTest, PatienceIsWhatTheFasterReplicaTakes) {
  EXPECT_EQ(health_.PatienceWith(0, 1, 1).late, options_.first_patience);
  Answers(0, absl::Milliseconds(100));
  EXPECT_EQ(health_.PatienceWith(0, 1, 1).late, absl::Milliseconds(200));  // 1 is not known
  EXPECT_EQ(health_.PatienceWith(0, 1, 1).stalled, absl::Milliseconds(800));
  Answers(1, absl::Milliseconds(10));
  EXPECT_EQ(health_.PatienceWith(0, 1, 1).late, absl::Milliseconds(20));
  EXPECT_EQ(health_.PatienceWith(1, 0, 1).late, absl::Milliseconds(20));
  Answers(2, absl::Microseconds(10));
  EXPECT_EQ(health_.PatienceWith(0, 2, 1).late, options_.min_patience);
  EXPECT_EQ(health_.PatienceWith(0, 2, 1).stalled, options_.min_stall);
}

TEST_F(ReplicaHealthTest, OneAnswerEndsTheFirstPatience) {
  health_.Answered(0, 1, absl::Milliseconds(10));
  EXPECT_EQ(health_.PatienceWith(0, 1, 1).late, absl::Milliseconds(20));
}

// A large batch after small ones may take long, and a frozen worker forever.
TEST_F(ReplicaHealthTest, AGuessBoundsWhenACallIsLateButNotWhenItIsStalled) {
  Answers(0, absl::Milliseconds(10));
  EXPECT_EQ(health_.PatienceWith(0, 1, 1024).late, options_.first_patience);
  EXPECT_EQ(health_.PatienceWith(0, 1, 1024).stalled, 8 * 1024 * absl::Milliseconds(10));
}

TEST_F(ReplicaHealthTest, FaultsInARowEject) {
  for (int i = 0; i < options_.faults_until_ejection - 1; ++i) health_.Faulted(0);
  Answers(0, absl::Milliseconds(1));
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
  for (int i = 0; i < options_.faults_until_ejection; ++i) health_.Faulted(0);
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(1));
  EXPECT_THAT(told_, ElementsAre(std::pair<size_t, bool>(0, true)));
}

TEST_F(ReplicaHealthTest, EjectionsAreIgnoredWhenTooFewWouldBeLeft) {
  health_.Stalled(0);
  EXPECT_THAT(health_.Trusted({0}), ElementsAre(0));
  EXPECT_THAT(health_.Trusted({0, 1, 2}), ElementsAre(1, 2));
  health_.Stalled(1);
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
  EXPECT_THAT(health_.Trusted({0, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_THAT(health_.Trusted({0, 1, 2, 3}), ElementsAre(2, 3));
}

TEST_F(ReplicaHealthTest, TheSilentAreLeftOutWhileAnyOtherLives) {
  health_.Silent(0);
  health_.Silent(1);
  EXPECT_THAT(health_.Trusted({0, 1, 2}), ElementsAre(2));
  health_.Stalled(2);
  EXPECT_THAT(health_.Trusted({0, 1, 2}), ElementsAre(2));
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
  // A sign of life makes it one of those that are ejected, and no more.
  health_.Heard(1);
  EXPECT_THAT(health_.Trusted({0, 1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(health_.Trusted({0, 1, 2, 3}), ElementsAre(1, 2, 3));
}

TEST_F(ReplicaHealthTest, AnswersAndSignsAreHeard) {
  EXPECT_EQ(health_.LastHeard(0), absl::InfinitePast());
  clock_.Advance(absl::Seconds(1));
  health_.Heard(0);
  EXPECT_EQ(health_.LastHeard(0), clock_.Now());
  clock_.Advance(absl::Seconds(1));
  health_.Answered(0, 1, absl::Milliseconds(1));
  EXPECT_EQ(health_.LastHeard(0), clock_.Now());
}

TEST_F(ReplicaHealthTest, AnEjectedWorkerIsProbedOnceWhenItsTimeIsOver) {
  EXPECT_FALSE(health_.TakeProbe(0));
  health_.Stalled(0);
  EXPECT_FALSE(health_.TakeProbe(0));
  clock_.Advance(options_.first_ejection);
  EXPECT_TRUE(health_.TakeProbe(0));
  EXPECT_FALSE(health_.TakeProbe(0));
  // An answer to a call of before says nothing of how it is now.
  Answers(0, absl::Milliseconds(1));
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(1));
  health_.ProbeEnded(0, true);
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
}

TEST_F(ReplicaHealthTest, EachFailedProbeDoublesTheTimeToABound) {
  health_.Stalled(0);
  absl::Duration ejection = options_.first_ejection;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(ejection - absl::Milliseconds(1));
    EXPECT_FALSE(health_.TakeProbe(0));
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_TRUE(health_.TakeProbe(0));
    health_.ProbeEnded(0, false);
    ejection = std::min(2 * ejection, options_.longest_ejection);
  }
  EXPECT_EQ(ejection, options_.longest_ejection);
  EXPECT_THAT(told_, ElementsAre(std::pair<size_t, bool>(0, true)));
}

TEST_F(ReplicaHealthTest, ANewConnectionIsACleanSlate) {
  health_.Stalled(0);
  clock_.Advance(options_.first_ejection);
  ASSERT_TRUE(health_.TakeProbe(0));
  health_.Reconnected(0);
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
  health_.ProbeEnded(0, false);  // of the connection before
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
}

TEST_F(ReplicaHealthTest, OneThatIsThereButFailsProbesIsConnectedAnewAndProbedAtOnce) {
  health_.Stalled(0);
  const auto fails_a_probe = [this] {
    clock_.Advance(options_.longest_ejection);
    EXPECT_TRUE(health_.TakeProbe(0));
    return health_.ProbeEnded(0, false);
  };
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(fails_a_probe());  // it may be frozen
  const auto fails_a_probe_alive = [this] {
    clock_.Advance(options_.longest_ejection);
    EXPECT_TRUE(health_.TakeProbe(0));
    health_.Heard(0);
    return health_.ProbeEnded(0, false);
  };
  EXPECT_FALSE(fails_a_probe_alive());
  EXPECT_FALSE(fails_a_probe_alive());
  EXPECT_TRUE(fails_a_probe_alive());
  EXPECT_FALSE(health_.TakeProbe(0));
  health_.Reconnected(0);
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(1));
  ASSERT_TRUE(health_.TakeProbe(0));
  EXPECT_FALSE(health_.ProbeEnded(0, true));
  EXPECT_THAT(health_.Trusted({0, 1}), ElementsAre(0, 1));
}

TEST(FailoverOptions, BadOnesAreNamed) {
  const auto refused = [](auto change) {
    FailoverOptions options;
    change(options);
    return options.Validate();
  };
  ATELIER_EXPECT_OK(FailoverOptions{}.Validate());
  EXPECT_FALSE(refused([](FailoverOptions& o) { o.hedge_budget = 1.5; }).ok());
  EXPECT_FALSE(refused([](FailoverOptions& o) { o.panic_threshold = -1; }).ok());
  EXPECT_FALSE(refused([](FailoverOptions& o) { o.faults_until_ejection = 0; }).ok());
  EXPECT_FALSE(refused([](FailoverOptions& o) { o.min_patience = absl::ZeroDuration(); }).ok());
  EXPECT_FALSE(refused([](FailoverOptions& o) { o.longest_ejection = absl::Seconds(0.1); }).ok());
}

}  // namespace
}  // namespace atelier
