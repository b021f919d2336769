#include "bench/support/token_times.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// One stream, a token every tenth of a second, but for a pause of one second from 1.0 to 2.0.
std::vector<TokenArrival> WithPause() {
  std::vector<TokenArrival> arrivals;
  for (int i = 1; i <= 30; ++i) {
    if (i > 10 && i < 20) continue;
    const double before = i == 1 ? 0 : i == 20 ? 1.0 : 0.1 * (i - 1);
    arrivals.push_back({0.1 * i, 0, i == 1 ? 0 : 0.1 * i - before});
  }
  return arrivals;
}

TEST(TokenRate, IsFromTokenToTokenAndNotOfWindows) {
  // Two tokens, at 0.3 and 0.4, of a window that begins and ends between tokens.
  EXPECT_NEAR(TokenRate(WithPause(), 0.25, 0.49), 10, 1e-6);
}

TEST(TokenRate, AddsStreamsAndCountsSilentOnesAsNothing) {
  const std::vector<TokenArrival> arrivals = {{1.0, 0}, {1.5, 0},  {2.0, 0},
                                              {1.0, 1}, {1.25, 1}, {0.5, 2}};
  EXPECT_NEAR(TokenRate(arrivals, 1.1, 2.1), 2 + 4, 1e-6);
  EXPECT_EQ(TokenRate(arrivals, 3, 4), 0);
}

TEST(GapsBetween, LeavesOutFirstTokensOfAnswers) {
  EXPECT_THAT(GapsBetween(WithPause(), 0, 0.35),
              ElementsAre(DoubleNear(0.1, 1e-9), DoubleNear(0.1, 1e-9)));
  EXPECT_THAT(GapsBetween(WithPause(), 1.05, 2.05), ElementsAre(DoubleNear(1.0, 1e-9)));
}

TEST(LongestGap, IsKnownByTheTokenThatEndsIt) {
  EXPECT_NEAR(LongestGap(WithPause(), 0.05, 3.0).value().time, 2.0, 1e-9);
  EXPECT_NEAR(LongestGap(WithPause(), 0.05, 1.95).value().gap, 0.1, 1e-9);
  EXPECT_FALSE(LongestGap(WithPause(), 0.05, 0.15).has_value());
}

TEST(FirstTokenAfter, IsOfWhicheverStreamIsFirst) {
  const std::vector<TokenArrival> arrivals = {{1.0, 0}, {3.0, 0}, {2.5, 1}};
  EXPECT_NEAR(FirstTokenAfter(arrivals, 2.0).value(), 0.5, 1e-9);
  EXPECT_FALSE(FirstTokenAfter(arrivals, 4.0).has_value());
}

TEST(TimeUntilRate, EndsThePauseWithItsLastTokenAndNotBefore) {
  EXPECT_NEAR(TimeUntilRate(WithPause(), 1.05, 3.0, 9.5, 0.25).value(), 0.95, 1e-6);
  // Without a pause it is the first token.
  EXPECT_NEAR(TimeUntilRate(WithPause(), 0.35, 1.0, 9.5, 0.25).value(), 0.05, 1e-6);
}

TEST(TimeUntilRate, IsNothingWhereTheRateIsNotReached) {
  EXPECT_FALSE(TimeUntilRate(WithPause(), 0.05, 3.0, 20, 0.25).has_value());
  EXPECT_FALSE(TimeUntilRate(WithPause(), 1.05, 2.05, 9.5, 0.25).has_value());
}

}  // namespace
}  // namespace atelier
