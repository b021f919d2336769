#include "libs/model/shard.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(SliceRange, CoversTheDimensionOnceInWholeGranulesAndEvenly) {
  for (int size : {1, 15, 16, 17, 128, 192, 768, 1408, 1536, 2560, 2563}) {
    for (int count = 1; count <= (size + 15) / 16 && count <= 40; ++count) {
      int expected_begin = 0;
      int previous_size = size + 16;
      for (int index = 0; index < count; ++index) {
        ATELIER_ASSERT_OK_AND_ASSIGN(const IntermediateRange range, SliceRange(size, index, count));
        EXPECT_EQ(range.begin, expected_begin) << size << " " << index << "/" << count;
        EXPECT_EQ(range.begin % kSliceGranule, 0);
        EXPECT_GT(range.size(), 0);
        EXPECT_LE(range.size(), previous_size);  // the larger slices come first
        EXPECT_LT(range.size(), size / count + 2 * kSliceGranule);
        previous_size = range.size();
        expected_begin = range.end;
      }
      EXPECT_EQ(expected_begin, size);
    }
  }
}

TEST(SliceRange, CutsUnevenly) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const IntermediateRange first, SliceRange(2560, 0, 3));
  ATELIER_ASSERT_OK_AND_ASSIGN(const IntermediateRange last, SliceRange(2560, 2, 3));
  EXPECT_EQ(first.size(), 864);
  EXPECT_EQ(last.begin, 1712);
  EXPECT_EQ(last.size(), 848);
}

TEST(SliceRange, RefusesSlicesThatDoNotExist) {
  EXPECT_THAT(SliceRange(64, 4, 4), StatusIs(kInvalid, HasSubstr("slice 4/4")));
  EXPECT_THAT(SliceRange(64, -1, 4), StatusIs(kInvalid, HasSubstr("slice -1/4")));
  EXPECT_THAT(SliceRange(64, 0, 0), StatusIs(kInvalid, HasSubstr("slice 0/0")));
  EXPECT_THAT(SliceRange(64, 0, 5), StatusIs(kInvalid, HasSubstr("at most 4 slices")));
  EXPECT_THAT(SliceRange(0, 0, 1), StatusIs(kInvalid, HasSubstr("intermediate_size=0")));
}

TEST(ParseSlice, TakesOnlyIndexSlashCount) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const SliceSpec slice, ParseSlice("1/3"));
  EXPECT_EQ(slice.index, 1);
  EXPECT_EQ(slice.count, 3);
  for (const char* text : {"", "1", "/", "1/", "/2", "2/2", "3/2", "-1/2", "+0/2", " 0/2", "0/2 ",
                           "0/2/3", "0/0", "a/b", "0/99999999999", "0x0/2", "0.5/2"}) {
    EXPECT_THAT(ParseSlice(text), StatusIs(kInvalid, HasSubstr("i/n"))) << text;
  }
}

TEST(ParseExpertRange, IncludesBothEnds) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertRange range, ParseExpertRange("5-15"));
  EXPECT_EQ(range.begin, 5);
  EXPECT_EQ(range.end, 16);
  ATELIER_ASSERT_OK_AND_ASSIGN(const ExpertRange one, ParseExpertRange("3-3"));
  EXPECT_EQ(one.end - one.begin, 1);
  for (const char* text :
       {"", "5", "-", "5-", "-5", "6-5", "--5", "1-2-3", "0-2147483647", "a-b"}) {
    EXPECT_THAT(ParseExpertRange(text), StatusIs(kInvalid, HasSubstr("a-b"))) << text;
  }
}

TEST(ShardName, SaysLayersExpertsAndSlice) {
  EXPECT_EQ(ShardName({.layers = {1, 2, 3, 5, 7, 8},
                       .expert_begin = 0,
                       .expert_end = 16,
                       .slice_index = 0,
                       .slice_count = 2}),
            "layers 1-3,5,7-8, experts 0-15, slice 0/2");
  EXPECT_EQ(ShardName({.layers = {}, .expert_begin = 5, .expert_end = 6}),
            "all layers, experts 5-5, slice 0/1");
}

}  // namespace
}  // namespace atelier
