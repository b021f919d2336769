#include <csignal>
#include <limits>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/checked_math.h"
#include "libs/base/float16.h"
#include "libs/base/log.h"
#include "libs/base/progress.h"
#include "libs/base/quoted.h"
#include "libs/base/termination.h"

namespace atelier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(CheckedMath, RefusesWhatDoesNotFit) {
  EXPECT_EQ(CheckedMul<uint64_t>(1u << 20, 1u << 20), uint64_t{1} << 40);
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 40, uint64_t{1} << 40), std::nullopt);
  EXPECT_EQ(CheckedAdd<int32_t>(std::numeric_limits<int32_t>::max(), 1), std::nullopt);
}

TEST(Float16, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f).bits, 0x3f80);            // tie, even below
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-7f + 0x1p-8f).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(ToFloat(ToBFloat16(std::numeric_limits<float>::quiet_NaN())) !=
              ToFloat(ToBFloat16(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Float16, HalfIsExactForEveryClass) {
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(Float16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0f);
}

TEST(Logger, QuotesValuesThatCouldForgeALine) {
  std::vector<std::string> lines;
  Logger logger(Severity::kInfo, [&](absl::string_view line) { lines.emplace_back(line); });
  logger.Debug("hidden");
  logger.Warning("odd_peer", {Kv("name", "a b\nE fake"), Kv("n", 3)});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], EndsWith(" W odd_peer name=\"a b\\nE fake\" n=3\n"));
}

class SteppedClock final : public Clock {
 public:
  absl::Time Now() override { return now += absl::Seconds(1); }
  absl::Time now = absl::UnixEpoch();
};

TEST(Progress, ReportsRateAndEtaAndAlwaysTheEnd) {
  std::vector<std::string> lines;
  Logger logger(Severity::kInfo, [&](absl::string_view line) { lines.emplace_back(line); });
  SteppedClock clock;
  Progress progress(logger, clock, "loading", "layers", 4, absl::Seconds(3));
  for (int i = 0; i < 4; ++i) progress.Add(1);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("done=3 total=4 percent=75 per_second=1"));
  EXPECT_THAT(lines[0], HasSubstr("eta_s=1"));
  EXPECT_THAT(lines[1], HasSubstr("percent=100"));
}

TEST(Quoted, EscapesAndClips) {
  EXPECT_EQ(Quoted("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc\"... (6 bytes)");
  EXPECT_EQ(Quoted("abc", 3), "\"abc\"");
}

TEST(TerminationSignals, AreSeenWhileWorkRuns) {
  TerminationSignals signals;
  absl::Notification seen;
  int number = 0;
  signals.RunWhileWatching(
      [&] {
        TerminationSignals::Raise();
        seen.WaitForNotification();
      },
      [&](int signal) {
        number = signal;
        seen.Notify();
      });
  EXPECT_EQ(number, SIGTERM);
}

TEST(TerminationSignals, AHangupIsOneUnlessItIsIgnored) {
  TerminationSignals signals;
  ASSERT_EQ(::raise(SIGHUP), 0);
  EXPECT_EQ(signals.Pending(), SIGHUP);
  ASSERT_NE(::signal(SIGHUP, SIG_IGN), SIG_ERR);
  ASSERT_EQ(::raise(SIGHUP), 0);
  EXPECT_EQ(signals.Pending(), 0);
  ASSERT_NE(::signal(SIGHUP, SIG_DFL), SIG_ERR);
}

}  // namespace
}  // namespace atelier
