#include <unistd.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/faults/excuses.h"
#include "tests/e2e/faults/fault_schedule.h"
#include "tests/e2e/faults/link_rules.h"
#include "tests/e2e/faults/options.h"
#include "tests/e2e/faults/oracle.h"
#include "tests/e2e/faults/report.h"
#include "tests/e2e/faults/resource_usage.h"

// What the harness decides without any process.

namespace atelier::faults {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Lines(const std::vector<PlannedFault>& schedule) {
  std::vector<std::string> lines;
  for (const PlannedFault& fault : schedule) lines.push_back(ToString(fault));
  return lines;
}

int Kills(const std::vector<PlannedFault>& schedule, const ClusterShape& shape) {
  int kills = 0;
  for (const PlannedFault& fault : schedule) kills += KillsOf(fault.kind, shape);
  return kills;
}

TEST(FaultSchedule, IsTheSameForTheSameSeedOnly) {
  EXPECT_EQ(Lines(MakeSchedule({.seed = 5})), Lines(MakeSchedule({.seed = 5})));
  EXPECT_NE(Lines(MakeSchedule({.seed = 5})), Lines(MakeSchedule({.seed = 6})));
  EXPECT_EQ(Lines(MakeSchedule({.seed = 1}))[0], Lines(MakeSchedule({.seed = 1, .kills = 1}))[0]);
}

TEST(FaultSchedule, HoldsEveryFaultAndEnoughKills) {
  const ScheduleSpec spec{.seed = 9, .kills = 60};
  const std::vector<PlannedFault> schedule = MakeSchedule(spec);
  std::set<FaultKind> kinds;
  for (const PlannedFault& fault : schedule) kinds.insert(fault.kind);
  EXPECT_EQ(kinds.size(), FaultMenu().size());
  EXPECT_GE(Kills(schedule, spec.shape), 60);
  EXPECT_LT(Kills(schedule, spec.shape), 60 + spec.shape.replicas);
}

TEST(FaultSchedule, KeepsToTheClusterItIsFor) {
  ScheduleSpec spec{.seed = 2, .kills = 300};
  spec.shape = {1, 1, 1, false};
  for (const PlannedFault& fault : MakeSchedule(spec)) {
    EXPECT_EQ(InfoOf(fault.kind).needs, Needs::kNothing) << ToString(fault);
    EXPECT_EQ(fault.slice + fault.replica + fault.other_replica, 0);
  }
  spec.shape = {2, 3, 3, true};
  for (const PlannedFault& fault : MakeSchedule(spec)) {
    EXPECT_LT(fault.slice, 2);
    EXPECT_LT(fault.replica, 3);
    EXPECT_GE(fault.frontend, 1);
    EXPECT_LT(fault.frontend, 3);
    EXPECT_LE(fault.lasts, absl::Seconds(5));
  }
}

TEST(FaultSchedule, OfOneFaultCountsThatFaultIfItKillsNothing) {
  EXPECT_EQ(MakeSchedule({.kills = 7, .only = FaultKind::kStop}).size(), 7u);
  EXPECT_EQ(MakeSchedule({.kills = 7, .only = FaultKind::kKill}).size(), 7u);
  EXPECT_EQ(MakeSchedule({.kills = 7, .only = FaultKind::kKillTwo}).size(), 4u);
  ScheduleSpec spec{.only = FaultKind::kLoss};
  spec.shape.link = false;
  EXPECT_TRUE(MakeSchedule(spec).empty());
}

TEST(FaultMenu, FindsEveryFaultByItsName) {
  for (const FaultInfo& fault : FaultMenu()) {
    ASSERT_NE(FindFault(fault.name), nullptr);
    EXPECT_EQ(FindFault(fault.name)->kind, fault.kind);
    EXPECT_THAT(MenuText(), HasSubstr(std::string(fault.name)));
    EXPECT_EQ(Obstacle(fault, ClusterShape()), "");
    EXPECT_EQ(Obstacle(fault, {1, 1, 1, false}).empty(), fault.needs == Needs::kNothing);
  }
  EXPECT_EQ(FindFault("nothing"), nullptr);
}

TEST(Options, AnUnknownFaultIsAnsweredWithThoseThereAre) {
  Options options;
  options.only = "kil";
  EXPECT_THAT(std::string(options.Validate().message()),
              AllOf(HasSubstr("--only=kil"), HasSubstr("kill_two")));
}

class OracleTest : public ::testing::Test {
 protected:
  OracleTest() { expected_.finished = true; }
  // The first two tokens, then `status`.
  Sequence Begun(absl::Status status) const {
    Sequence seen = expected_;
    seen.tokens.resize(2);
    seen.logprobs.resize(2);
    seen.finished = false;
    seen.status = std::move(status);
    return seen;
  }
  Sequence expected_{{5, 6, 7}, {-0.5f, -0.25f, -1.0f}, true, {}};
};

TEST_F(OracleTest, EqualIsTheSame) {
  EXPECT_EQ(Judge(expected_, expected_, false).verdict, Verdict::kSame);
  EXPECT_EQ(Judge(expected_, expected_, true).verdict, Verdict::kSame);
}

TEST_F(OracleTest, AnEarlyEndIsLostUnlessItWasAskedFor) {
  const Sequence begun = Begun(absl::UnavailableError("gone"));
  EXPECT_EQ(Judge(expected_, begun, true).verdict, Verdict::kEnded);
  const Judgement judgement = Judge(expected_, begun, false);
  EXPECT_EQ(judgement.verdict, Verdict::kLost);
  EXPECT_THAT(judgement.why, AllOf(HasSubstr("2 of 3 tokens"), HasSubstr("gone")));
  EXPECT_EQ(Judge(expected_, Begun(absl::OkStatus()), false).verdict, Verdict::kLost);
}

TEST_F(OracleTest, AnotherTokenIsAChangeEvenInAStreamThatMayEnd) {
  Sequence seen = Begun(absl::UnavailableError("gone"));
  seen.tokens[1] = 9;
  const Judgement judgement = Judge(expected_, seen, true);
  EXPECT_EQ(judgement.verdict, Verdict::kChanged);
  EXPECT_EQ(judgement.why, "token 1 is 9, expected 6");
}

TEST_F(OracleTest, OneBitOfALogProbabilityIsAChange) {
  Sequence seen = expected_;
  seen.logprobs[2] = std::nextafter(-1.0f, 0.0f);
  EXPECT_EQ(Judge(expected_, seen, false).verdict, Verdict::kChanged);
}

TEST_F(OracleTest, TooFewOrTooManyTokensAreAChange) {
  Sequence seen = Begun(absl::OkStatus());
  seen.finished = true;
  EXPECT_EQ(Judge(expected_, seen, true).verdict, Verdict::kChanged);
  seen = expected_;
  seen.tokens.push_back(8);
  EXPECT_EQ(Judge(expected_, seen, true).verdict, Verdict::kChanged);
  seen.logprobs.push_back(0);
  EXPECT_EQ(Judge(expected_, seen, true).verdict, Verdict::kChanged);
}

TEST(Requests, AreTheSameForTheSameSeedOnlyAndOfTheVocabulary) {
  const std::vector<StreamRequest> requests = MakeRequests(3, 50, 40);
  EXPECT_EQ(requests[7].prompt, MakeRequests(3, 50, 40)[7].prompt);
  EXPECT_NE(requests[7].prompt, MakeRequests(4, 50, 40)[7].prompt);
  for (const StreamRequest& request : requests) {
    EXPECT_THAT(request.prompt, ::testing::Each(::testing::Lt(40u)));
    EXPECT_FALSE(request.prompt.empty());
    EXPECT_GE(request.max_new_tokens, 8u);
  }
  EXPECT_EQ(requests[0].temperature, 0.0f);
  EXPECT_EQ(requests[1].temperature, 1.0f);
}

TEST(Excuses, CoverStreamsThatMetThem) {
  Excuses excuses(2);
  const absl::Time before = absl::Now();
  EXPECT_FALSE(excuses.Cover(0, before));
  excuses.Open(0);
  EXPECT_TRUE(excuses.Cover(0, before));
  EXPECT_FALSE(excuses.Cover(1, before));
  excuses.Close(0);
  EXPECT_TRUE(excuses.Cover(0, before));
  EXPECT_FALSE(excuses.Cover(0, absl::Now() + absl::Seconds(1)));
  excuses.OpenAll();
  EXPECT_TRUE(excuses.Cover(1, absl::Now()));
}

TEST(Report, SummaryCountsAll) {
  Tally tally;
  tally.kills = 3;
  tally.faults = 4;
  tally.Count(Verdict::kSame, 10);
  tally.Count(Verdict::kEnded, 5);
  tally.Count(Verdict::kLost, 1);
  tally.Count(Verdict::kChanged, 2);
  EXPECT_EQ(SummaryLine(tally), "3 kills, 4 faults, 4 sequences, 18 tokens: 1 lost, 1 changed");
  EXPECT_EQ(tally.ended, 1);
}

TEST(Report, StallsAreByFault) {
  StallTable stalls;
  for (const int ms : {30, 10, 20}) stalls.Add(FaultKind::kKill, absl::Milliseconds(ms));
  EXPECT_THAT(stalls.ToText(), Not(HasSubstr("(none)")));
  stalls.AddQuiet(absl::Milliseconds(5));
  EXPECT_THAT(stalls.ToText(), HasSubstr("(none)                1       5.0       5.0       5.0"));
  EXPECT_THAT(stalls.ToText(), HasSubstr("kill                  3      20.0      20.0      30.0"));
}

double ShareOf(const LinkRules& rules, int copies) {
  constexpr int kPackets = 20000;
  int count = 0;
  for (int i = 0; i < kPackets; ++i) count += DecideFate(rules, 11, i).copies == copies ? 1 : 0;
  return static_cast<double>(count) / kPackets;
}

TEST(LinkRules, DecideByTheirProbabilities) {
  // Five standard deviations of that many packets.
  EXPECT_NEAR(ShareOf({.loss = 0.3}, 0), 0.3, 0.017);
  EXPECT_NEAR(ShareOf({.duplicate = 0.1}, 2), 0.1, 0.011);
  EXPECT_EQ(ShareOf({}, 1), 1.0);
  EXPECT_EQ(ShareOf({.blocked = true}, 0), 1.0);
}

TEST(LinkRules, DecideTheSameAgain) {
  const LinkRules rules{.loss = 0.5, .reorder = 0.5, .delay = absl::Milliseconds(3)};
  std::set<absl::Duration> delays;
  for (uint64_t packet = 0; packet < 100; ++packet) {
    const PacketFate fate = DecideFate(rules, 4, packet);
    EXPECT_EQ(fate.copies, DecideFate(rules, 4, packet).copies);
    EXPECT_EQ(fate.delay, DecideFate(rules, 4, packet).delay);
    delays.insert(fate.delay);
  }
  EXPECT_EQ(delays.size(), 2u);
  EXPECT_EQ(*delays.begin(), absl::Milliseconds(3));
}

TEST(ResourceUsage, OfThisProcessIsPlausible) {
  const ResourceUsage usage = ResourcesOf(::getpid());
  EXPECT_GE(usage.fds, 3);
  EXPECT_GE(usage.threads, 1);
  EXPECT_GT(usage.rss_bytes, 1 << 20);
}

TEST(ResourceUsage, GrowthNamesWhatGrew) {
  const ResourceUsage before{10, 2, 5, 100 << 20};
  EXPECT_EQ(Growth(before, before, 0), "");
  EXPECT_EQ(Growth(before, {9, 1, 5, 101 << 20}, 1 << 20), "");
  EXPECT_THAT(Growth(before, {11, 3, 99, 103 << 20}, 1 << 20),
              AllOf(HasSubstr("fds grew from 10 to 11"), HasSubstr("segments grew from 2 to 3"),
                    HasSubstr("threads"), HasSubstr("resident bytes")));
  EXPECT_THAT(Growth(before, {11, 2, 5, 0}, 0), Not(HasSubstr("segments")));
}

TEST(Metrics, AreReadByNameWithLabels) {
  const std::string page =
      "# TYPE a counter\na{worker=\"x\"} 1\na{worker=\"y\"} 2.5\nab 7\nb 4\r\n";
  EXPECT_EQ(MetricValue(page, "a{worker=\"y\"}"), 2.5);
  EXPECT_EQ(MetricValue(page, "b"), 4);
  EXPECT_EQ(MetricValue(page, "c"), 0);
  EXPECT_EQ(MetricSum(page, "a"), 3.5);
}

TEST(Metrics, QuantilesOfHistogramsAreEndsOfBuckets) {
  const std::string page =
      "a_bucket{worker=\"x\",le=\"0.1\"} 90\na_bucket{worker=\"x\",le=\"0.5\"} 99\n"
      "a_bucket{worker=\"x\",le=\"+Inf\"} 100\na_bucket{worker=\"y\",le=\"0.1\"} 100\n"
      "a_bucket{worker=\"y\",le=\"0.5\"} 100\na_bucket{worker=\"y\",le=\"+Inf\"} 100\n";
  EXPECT_EQ(HistogramQuantile(page, "a", 0.95), 0.1);
  EXPECT_EQ(HistogramQuantile(page, "a", 0.99), 0.5);
  EXPECT_EQ(HistogramQuantile(page, "a", 1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(HistogramQuantile(page, "b", 0.5), 0);
}

}  // namespace
}  // namespace atelier::faults
