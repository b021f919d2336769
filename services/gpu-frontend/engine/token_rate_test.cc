#include "services/gpu-frontend/engine/token_rate.h"

#include "gtest/gtest.h"

namespace atelier {
namespace {

TEST(TokenRate, IsOfTheLastTenSeconds) {
  const absl::Time start = absl::UnixEpoch();
  TokenRate rate;
  EXPECT_EQ(rate.PerSecond(start), 0);
  for (int second = 0; second < 20; ++second) rate.Add(start + absl::Seconds(second), 30);
  // Eleven entries, seconds 9 … 19, over ten seconds.
  EXPECT_DOUBLE_EQ(rate.PerSecond(start + absl::Seconds(19)), 33);
  // Five are left, seconds 15 … 19.
  EXPECT_DOUBLE_EQ(rate.PerSecond(start + absl::Seconds(25)), 15);
  EXPECT_EQ(rate.PerSecond(start + absl::Seconds(40)), 0);
}

TEST(TokenRate, AFirstTokenIsNotAnInfiniteRate) {
  TokenRate rate;
  rate.Add(absl::UnixEpoch(), 5);
  EXPECT_DOUBLE_EQ(rate.PerSecond(absl::UnixEpoch()), 5);
  EXPECT_DOUBLE_EQ(rate.PerSecond(absl::UnixEpoch() + absl::Seconds(2)), 2.5);
}

}  // namespace
}  // namespace atelier
