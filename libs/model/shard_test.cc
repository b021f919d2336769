#include "libs/model/shard.h"

#include <string>
#include <vector>

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
        // Of the largest slice, the mean is 95 %, or it is within the smallest granule.
        EXPECT_TRUE(range.size() < size / count + 2 * kSliceGranule ||
                    95 * range.size() * count <= 100 * size);
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
  EXPECT_EQ(first.size(), 896);
  EXPECT_EQ(last.begin, 1792);
  EXPECT_EQ(last.size(), 768);
}

// Groups of scales stay whole wherever that costs no balance to speak of.
TEST(SliceRange, BoundariesAreMultiplesAsLargeAsBalanceAllows) {
  const auto granule = [](int size, int count) {
    const int begin = SliceRange(size, 1, count).value().begin;
    return begin & -begin;  // the largest power of two that divides it
  };
  EXPECT_EQ(granule(2048, 4), 512);
  EXPECT_EQ(granule(2048, 3), 64);  // 704, 704, 640; 768, 768, 512 would waste 11 %
  EXPECT_EQ(granule(1408, 2), 64);  // 704 each; 768 and 640 would waste 8 %
  EXPECT_EQ(granule(768, 2), 128);  // 384 each
  EXPECT_EQ(granule(2880, 4), 32);  // 736, 736, 704, 704
  EXPECT_EQ(granule(1104, 3), 16);  // 368 each: no multiple of 32
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

TEST(IndexRanges, AreReadAsTheyAreWritten) {
  for (const std::vector<int>& indexes :
       std::vector<std::vector<int>>{{0}, {7}, {0, 1, 2}, {1, 3, 4, 9}}) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const std::vector<int> read,
                                 ParseIndexRanges(IndexRanges(indexes), 10));
    EXPECT_EQ(read, indexes);
  }
  EXPECT_EQ(IndexRanges({1, 2, 3, 5}), "1-3,5");
}

TEST(IndexRanges, RefusesOtherTexts) {
  for (const char* text : {"", ",", "1,", "3-1", "1,1", "2,1", "0-3,3", "-1", "1-", "a", "10",
                           "4-10", "0-99999999999"}) {
    EXPECT_THAT(ParseIndexRanges(text, 10), StatusIs(kInvalid, HasSubstr("below 10"))) << text;
  }
}

}  // namespace
}  // namespace atelier
