#include "libs/placement/eplb.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/placement/placement_quality.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The example of EPLB's README (github.com/deepseek-ai/EPLB): two layers, twelve experts.
const std::vector<std::vector<double>> kPublishedLoads = {
    {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
    {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
constexpr EplbShape kPublishedShape{16, 4, 2, 8};

TEST(Eplb, GivesThePublishedPlan) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan plan,
                               BalanceByEplb(kPublishedLoads, kPublishedShape));
  EXPECT_THAT(plan.expert_of_slot,
              ElementsAre(ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
                          ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1)));
  EXPECT_THAT(plan.slots_of_expert[0][5], ElementsAre(0, 2));
  EXPECT_THAT(plan.slots_of_expert[1][10], ElementsAre(1));
}

TEST(Eplb, IgnoresGroupsThatNodesDoNotDivide) {
  EplbShape shape{16, 3, 2, 8};
  ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan plan, BalanceByEplb(kPublishedLoads, shape));
  shape = {16, 1, 1, 8};
  ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan global, BalanceByEplb(kPublishedLoads, shape));
  EXPECT_EQ(plan.expert_of_slot, global.expert_of_slot);
}

TEST(Eplb, TiesGoToTheLowerIndex) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan plan, BalanceByEplb({{1, 1, 1, 1}}, {6, 1, 1, 2}));
  EXPECT_THAT(plan.slots_of_expert[0], ElementsAre(::testing::SizeIs(2), ::testing::SizeIs(2),
                                                   ::testing::SizeIs(1), ::testing::SizeIs(1)));
  EXPECT_THAT(plan.expert_of_slot[0], ElementsAre(2, 0, 0, 3, 1, 1));
}

TEST(Eplb, CountsCopiesThatShareADevice) {
  // The first expert takes all spare slots, more than there are devices.
  const EplbShape shape{8, 1, 1, 2};
  ATELIER_ASSERT_OK_AND_ASSIGN(const EplbPlan plan, BalanceByEplb({{100, 1, 1, 1}}, shape));
  EXPECT_EQ(plan.slots_of_expert[0][0].size(), 5u);
  EXPECT_EQ(WastedCopies(plan, shape), 3);
  EXPECT_THAT(HoldersOf(plan, shape)[0][0], ElementsAre(0, 1));
}

TEST(Eplb, NamesWhatDoesNotDivide) {
  const auto fails = [](const EplbShape& shape, const char* part) {
    EXPECT_THAT(BalanceByEplb(kPublishedLoads, shape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part)));
  };
  fails({16, 5, 1, 8}, "groups=5 does not divide 12");
  fails({16, 0, 1, 8}, "groups=0");
  fails({16, 4, 3, 8}, "nodes=3 does not divide devices=8");
  fails({16, 4, 0, 8}, "nodes=0");
  fails({16, 4, 2, 0}, "devices=0");
  fails({18, 4, 2, 8}, "slots=18");
  fails({8, 4, 2, 8}, "slots=8 must be at least 12");
  EXPECT_THAT(BalanceByEplb({}, kPublishedShape),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nothing to place")));
  EXPECT_THAT(BalanceByEplb({{1, 2}, {1}}, {2, 1, 1, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("different lengths")));
}

}  // namespace
}  // namespace atelier
