#include "tools/atelier/placement_units.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PlacementUnits, AreEvenRunsOfExpertsInSlices) {
  EXPECT_THAT(EvenUnits(16, 3, 1),
              ElementsAre(ShardSpec{{}, 0, 5, 0, 1}, ShardSpec{{}, 5, 10, 0, 1},
                          ShardSpec{{}, 10, 16, 0, 1}));
  EXPECT_THAT(EvenUnits(4, 2, 2),
              ElementsAre(ShardSpec{{}, 0, 2, 0, 2}, ShardSpec{{}, 0, 2, 1, 2},
                          ShardSpec{{}, 2, 4, 0, 2}, ShardSpec{{}, 2, 4, 1, 2}));
}

PlacementFile FileOf(std::vector<std::vector<ShardSpec>> shards) {
  PlacementFile file;
  file.num_experts = 8;
  for (size_t i = 0; i < shards.size(); ++i) {
    file.workers.push_back({std::string(1, static_cast<char>('a' + i)), "", 0, 0, shards[i]});
  }
  return file;
}

TEST(PlacementUnits, ComeBackFromAPlacement) {
  const PlacementUnits units = EvenUnits(8, 2, 2);
  const Holders holders = {{{0, 1}, {2}, {0}, {1, 2}}, {{1}, {0}, {2}, {0, 1}}};
  const std::vector<int> layers = {3, 5};
  const auto shards = ShardsOf(holders, units, layers, 4);
  EXPECT_THAT(shards[0], ElementsAre(ShardSpec{{3}, 0, 4, 0, 2}, ShardSpec{{5}, 0, 4, 1, 2},
                                     ShardSpec{{3}, 4, 8, 0, 2}, ShardSpec{{5}, 4, 8, 1, 2}));
  EXPECT_THAT(shards[3], IsEmpty());
  PlacementFile file = FileOf(shards);
  ATELIER_ASSERT_OK_AND_ASSIGN(const PlacementUnits found, UnitsOf(file));
  EXPECT_EQ(found, units);
  EXPECT_EQ(HoldersOf(file, units, layers, file.workers), holders);
  // By name; who is gone holds nothing, nor does who is new.
  std::vector<PlacedWorker> others = {{"new", "", 0, 0, {}}, {"b", "", 0, 0, {}}};
  EXPECT_EQ(HoldersOf(file, units, layers, others),
            (Holders{{{1}, {}, {}, {1}}, {{1}, {}, {}, {1}}}));
}

TEST(PlacementUnits, AreRefusedUnlessTheyAreEveryExpertOnceInAllLayers) {
  const auto refused = [](std::vector<std::vector<ShardSpec>> shards, const char* part) {
    EXPECT_THAT(UnitsOf(FileOf(std::move(shards))),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part)));
  };
  refused({{}}, "hold nothing");
  refused({{{{1}, 0, 4, 0, 1}}}, "nobody holds expert 4, slice 0");
  refused({{{{1}, 0, 8, 0, 2}}}, "nobody holds expert 0, slice 1");
  refused({{{{1}, 1, 8, 0, 1}}}, "expert 0, slice 0 should be next");
  refused({{{{1}, 0, 8, 1, 2}}}, "expert 0, slice 0 should be next");
  refused({{{{1}, 0, 5, 0, 1}}, {{{1}, 4, 8, 0, 1}}}, "expert 5, slice 0 should be next");
  refused({{{{1, 2}, 0, 8, 0, 1}, {{2}, 0, 4, 0, 1}}}, "layer 2 is in other parts than layer 1");
}

}  // namespace
}  // namespace atelier
