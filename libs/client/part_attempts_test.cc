#include "libs/client/part_attempts.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fake_clock.h"

namespace atelier {
namespace {

using Why = PartAttempts::Why;

constexpr absl::Duration kUsual = absl::Milliseconds(10);  // what every answer took so far

class PartAttemptsTest : public ::testing::Test {
 protected:
  PartAttemptsTest() {
    routes_.connections = {1, 1, 1};
    for (size_t worker = 0; worker < 3; ++worker) {
      for (int i = 0; i < 20; ++i) health_.Answered(worker, 1, kUsual);
    }
    for (int i = 0; i < 100; ++i) budget_.CountCall();
  }

  PartAttempts Of(std::vector<size_t> replicas, int rows = 1) {
    return {std::move(replicas), rows, clock_.Now() + absl::Seconds(10),
            PartAttempts::Policy{options_, health_, budget_}};
  }
  // The worker that is to be asked, for the reason that is expected, and is asked.
  size_t Ask(PartAttempts& attempts, Why why) {
    const PartAttempts::Step step = attempts.Next(clock_.Now(), routes_);
    EXPECT_TRUE(step.worker.has_value());
    EXPECT_EQ(step.why, why);
    return attempts.Asked(step.worker.value_or(0), routes_, clock_.Now());
  }
  absl::Duration Waits(PartAttempts& attempts) {
    const PartAttempts::Step step = attempts.Next(clock_.Now(), routes_);
    asked_for_sign_ = step.ask_for_sign;
    EXPECT_FALSE(step.worker.has_value() || step.give_up || step.take_not_finite);
    return step.until - clock_.Now();
  }

  // Where it is not about silence.
  static FailoverOptions Options() {
    FailoverOptions options;
    options.longest_silence = absl::Minutes(1);
    return options;
  }

  testing::FakeClock clock_;
  FailoverOptions options_ = Options();
  std::optional<size_t> asked_for_sign_;  // by the last wait
  std::vector<std::pair<size_t, bool>> ejections_;
  ReplicaHealth health_{3, options_, clock_, [this](size_t worker, bool ejected) {
                          ejections_.emplace_back(worker, ejected);
                        }};
  HedgeBudget budget_{0.05};
  Routes routes_;
};

TEST_F(PartAttemptsTest, AsksThePreferredReplicaAndWaitsForTwiceTheUsualTime) {
  PartAttempts attempts = Of({2, 0, 1});
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kFirst)), 2u);
  EXPECT_EQ(Waits(attempts), 2 * kUsual);
}

TEST_F(PartAttemptsTest, AFailureGoesToTheNextReplicaAtOnceAndToNoneTwice) {
  PartAttempts attempts = Of({2, 0, 1});
  for (const size_t expected : {2u, 0u, 1u}) {
    const size_t attempt = Ask(attempts, expected == 2 ? Why::kFirst : Why::kFailover);
    EXPECT_EQ(attempts.WorkerOf(attempt), expected);
    attempts.Failed(attempt, absl::InternalError("broken"), clock_.Now());
  }
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).give_up);
  EXPECT_EQ(attempts.Error(), absl::InternalError("broken; broken; broken"));
}

TEST_F(PartAttemptsTest, AReplicaThatIsNotConnectedIsNotAsked) {
  routes_.connections[2] = 0;
  PartAttempts attempts = Of({2, 0, 1});
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kFirst)), 0u);
}

TEST_F(PartAttemptsTest, ACallOfNobodyWaitsForAReplicaToComeBackButNotForLong) {
  PartAttempts attempts = Of({0, 1});
  routes_.connections[1] = 0;
  attempts.Failed(Ask(attempts, Why::kFirst), absl::UnavailableError("lost"), clock_.Now());
  EXPECT_GT(Waits(attempts), absl::ZeroDuration());
  clock_.Advance(options_.reconnect_grace / 2);
  EXPECT_GT(Waits(attempts), absl::ZeroDuration());
  clock_.Advance(options_.reconnect_grace / 2);
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).give_up);
  // A new connection of one that failed before is worth a new attempt.
  routes_.connections[0] = 2;
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kFailover)), 0u);
}

TEST_F(PartAttemptsTest, AnOnlyReplicaIsNeitherWaitedForNorHedged) {
  PartAttempts attempts = Of({1});
  const size_t attempt = Ask(attempts, Why::kFirst);
  EXPECT_EQ(Waits(attempts), absl::InfiniteDuration());
  attempts.Failed(attempt, absl::UnavailableError("lost"), clock_.Now());
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).give_up);
}

TEST_F(PartAttemptsTest, AnErrorOfTheRequestItselfIsNotTriedElsewhere) {
  PartAttempts attempts = Of({0, 1});
  attempts.Failed(Ask(attempts, Why::kFirst), absl::InvalidArgumentError("bad"), clock_.Now());
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).give_up);
}

TEST_F(PartAttemptsTest, PastItsDeadlineACallGoesNowhere) {
  PartAttempts attempts = Of({0, 1});
  const size_t attempt = Ask(attempts, Why::kFirst);
  clock_.Advance(absl::Seconds(10));
  attempts.Failed(attempt, absl::DeadlineExceededError("late"), clock_.Now());
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).give_up);
}

TEST_F(PartAttemptsTest, ALateReplicaIsHedgedAndFaultedWhenItIsOvertaken) {
  for (int i = 0; i < options_.faults_until_ejection; ++i) {
    EXPECT_THAT(ejections_, ::testing::IsEmpty());
    PartAttempts attempts = Of({0, 1});
    EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kFirst)), 0u);
    clock_.Advance(2 * kUsual);
    const size_t hedge = Ask(attempts, Why::kLate);
    EXPECT_EQ(attempts.WorkerOf(hedge), 1u);
    attempts.Answered(hedge, clock_.Now());
  }
  EXPECT_THAT(ejections_, ::testing::ElementsAre(std::pair<size_t, bool>(0, true)));
  PartAttempts next = Of({0, 1});
  EXPECT_EQ(next.WorkerOf(Ask(next, Why::kFirst)), 1u);
}

TEST_F(PartAttemptsTest, WithoutBudgetALateReplicaHasUntilItStalls) {
  while (budget_.Spend()) {
  }
  PartAttempts attempts = Of({0, 1});
  Ask(attempts, Why::kFirst);
  clock_.Advance(2 * kUsual);
  const absl::Duration left = Waits(attempts);
  EXPECT_EQ(left, 4 * 2 * kUsual - 2 * kUsual);
  // Budget that comes later is not for this one: it would be asked for again and again.
  for (int i = 0; i < 100; ++i) budget_.CountCall();
  EXPECT_EQ(Waits(attempts), left);
  EXPECT_THAT(ejections_, ::testing::IsEmpty());
  clock_.Advance(left);
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kStalled)), 1u);
  EXPECT_THAT(ejections_, ::testing::ElementsAre(std::pair<size_t, bool>(0, true)));
}

TEST_F(PartAttemptsTest, AReplicaThatGivesNoSignOfLifeIsStalledHoweverLongItMayTake) {
  options_.longest_silence = absl::Milliseconds(50);
  health_.Answered(0, 4096, absl::Seconds(5));
  PartAttempts attempts = Of({0, 1}, 4096);
  Ask(attempts, Why::kFirst);
  EXPECT_EQ(Waits(attempts), options_.longest_silence / 2);
  EXPECT_EQ(asked_for_sign_, std::nullopt);
  clock_.Advance(options_.longest_silence / 2);
  EXPECT_EQ(Waits(attempts), options_.longest_silence);
  EXPECT_EQ(asked_for_sign_, 0u);
  clock_.Advance(options_.longest_silence);
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kStalled)), 1u);
  EXPECT_THAT(ejections_, ::testing::ElementsAre(std::pair<size_t, bool>(0, true)));
}

TEST_F(PartAttemptsTest, AReplicaThatIsThereIsAskedAgainAndAgainAndMayTakeItsTime) {
  options_.longest_silence = absl::Milliseconds(50);
  health_.Answered(0, 4096, absl::Seconds(5));
  PartAttempts attempts = Of({0, 1}, 4096);
  Ask(attempts, Why::kFirst);
  clock_.Advance(options_.longest_silence / 2);
  for (int i = 0; i < 20; ++i) {
    Waits(attempts);
    EXPECT_EQ(asked_for_sign_, 0u);
    health_.Heard(0);
    EXPECT_EQ(Waits(attempts), options_.longest_silence);
    EXPECT_EQ(asked_for_sign_, std::nullopt);
    clock_.Advance(options_.longest_silence);
  }
  EXPECT_THAT(ejections_, ::testing::IsEmpty());
  // Until it freezes after all.
  Waits(attempts);
  clock_.Advance(options_.longest_silence);
  EXPECT_EQ(attempts.WorkerOf(Ask(attempts, Why::kStalled)), 1u);
}

TEST_F(PartAttemptsTest, TheFirstOfTwoToAnswerCountsWhicheverItIs) {
  PartAttempts attempts = Of({0, 1});
  const size_t first = Ask(attempts, Why::kFirst);
  clock_.Advance(2 * kUsual);
  Ask(attempts, Why::kLate);
  attempts.Answered(first, clock_.Now());
  EXPECT_THAT(ejections_, ::testing::IsEmpty());
}

TEST_F(PartAttemptsTest, AnAnswerThatIsNotFiniteIsAskedForOnceMore) {
  PartAttempts attempts = Of({0, 1, 2});
  attempts.NotFinite(Ask(attempts, Why::kFirst));
  const size_t second = Ask(attempts, Why::kNotFinite);
  EXPECT_EQ(attempts.WorkerOf(second), 1u);
  attempts.NotFinite(second);
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).take_not_finite);
}

TEST_F(PartAttemptsTest, AnAnswerThatIsNotFiniteIsBetterThanNone) {
  PartAttempts attempts = Of({0, 1});
  attempts.NotFinite(Ask(attempts, Why::kFirst));
  attempts.Failed(Ask(attempts, Why::kNotFinite), absl::UnavailableError("lost"), clock_.Now());
  EXPECT_TRUE(attempts.Next(clock_.Now(), routes_).take_not_finite);
}

}  // namespace
}  // namespace atelier
