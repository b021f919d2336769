#include "libs/transport/shm_wait.h"

#include <thread>

#include "gtest/gtest.h"

namespace atelier {
namespace {

constexpr absl::Duration kLongest = absl::Microseconds(50);

TEST(SpinBudget, ShrinksToNothingWhileItCatchesNothingButTriesNowAndThen) {
  SpinBudget budget(kLongest);
  absl::Duration total;
  int whole = 0;
  for (int i = 0; i < 320; ++i) {
    const absl::Duration next = budget.Next();
    EXPECT_LE(next, kLongest);
    total += next;
    whole += next == kLongest ? 1 : 0;
    budget.Missed();
  }
  EXPECT_GE(whole, 10);
  EXPECT_LE(whole, 12);
  EXPECT_LT(total, 14 * kLongest);
}

TEST(SpinBudget, IsWholeAgainAfterACatch) {
  SpinBudget budget(kLongest);
  for (int i = 0; i < 40; ++i) budget.Missed();
  budget.Next();  // the try
  EXPECT_EQ(budget.Next(), absl::ZeroDuration());
  budget.Caught();
  EXPECT_EQ(budget.Next(), kLongest);
}

TEST(SpinBudget, OfNothingNeverLooks) {
  SpinBudget budget(absl::ZeroDuration());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(budget.Next(), absl::ZeroDuration());
    budget.Caught();
  }
}

TEST(Bell, NeverLosesAWakeUp) {
  ShmBell bell{};
  std::atomic<int> posted{0};
  constexpr int kRounds = 2000;
  std::thread ringer([&] {
    for (int i = 0; i < kRounds; ++i) {
      posted.fetch_add(1, std::memory_order_release);
      Ring(bell);
    }
  });
  for (int seen = 0; seen < kRounds; seen = posted.load(std::memory_order_acquire)) {
    const uint32_t armed = Arm(bell);
    if (posted.load(std::memory_order_acquire) == seen) {
      Sleep(bell, armed, absl::InfiniteDuration());
    }
    Disarm(bell);
  }
  ringer.join();
}

}  // namespace
}  // namespace atelier
