#include "libs/checkpoint/byte_ranges.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;

TEST(ByteRanges, TouchingRangesAreOne) {
  ByteRanges set;
  set.Add({10, 20});
  set.Add({30, 40});
  set.Add({20, 30});
  set.Add({50, 50});
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{10, 40}));
}

TEST(ByteRanges, GapsAreFilledUpToTheirLimit) {
  ByteRanges set;
  set.Add({0, 10});
  set.Add({14, 20});
  set.Add({25, 30});
  EXPECT_THAT(set.WithGapsUpTo(4).ranges(), ElementsAre(ByteRange{0, 20}, ByteRange{25, 30}));
  EXPECT_THAT(set.WithGapsUpTo(0).ranges(),
              ElementsAre(ByteRange{0, 10}, ByteRange{14, 20}, ByteRange{25, 30}));
}

TEST(ByteRanges, AgreeWithASetOfBytes) {
  std::mt19937 random(7);
  ByteRanges ranges, others;
  std::set<uint64_t> bytes, other_bytes;
  for (int round = 0; round < 400; ++round) {
    const uint64_t begin = random() % 300, end = begin + random() % 12;
    const bool to_others = random() % 2 == 0;
    (to_others ? others : ranges).Add({begin, end});
    for (uint64_t at = begin; at < end; ++at) (to_others ? other_bytes : bytes).insert(at);
    ASSERT_EQ(ranges.bytes(), bytes.size());
    const uint64_t from = random() % 300, to = from + random() % 20;
    bool all = true;
    uint64_t missing = 0;
    for (uint64_t at = from; at < to; ++at) {
      all = all && bytes.contains(at);
      missing += bytes.contains(at) ? 0 : 1;
    }
    ASSERT_EQ(ranges.Contains({from, to}), all);
    ASSERT_EQ(ranges.MissingIn({from, to}).bytes(), missing);
    uint64_t left = 0;
    for (const uint64_t byte : bytes) left += other_bytes.contains(byte) ? 0 : 1;
    ASSERT_EQ(ranges.Minus(others).bytes(), left);
    if (round % 40 == 39) {
      ranges = {};
      others = {};
      bytes.clear();
      other_bytes.clear();
    }
  }
}

}  // namespace
}  // namespace atelier
