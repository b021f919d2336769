#include "services/gpu-frontend/engine/kv_block_manager.h"

#include <iostream>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using ::testing::SizeIs;

constexpr int kBlock = 4;

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A table with all of `tokens` computed.
KvBlockTable Computed(const std::vector<int32_t>& tokens, KvBlockManager& kv) {
  const int size = static_cast<int>(tokens.size());
  KvBlockTable table;
  kv.Attach(tokens, size - 1, table);
  EXPECT_TRUE(kv.Grow(size, table));
  kv.Commit(tokens, size, table);
  return table;
}

TEST(KvBlockManager, GrowTakesWholeBlocksOrNothing) {
  KvBlockManager kv(3, kBlock, true);
  KvBlockTable table;
  EXPECT_TRUE(kv.Grow(5, table));
  EXPECT_THAT(table.blocks, SizeIs(2));
  EXPECT_TRUE(kv.Grow(8, table));
  EXPECT_THAT(table.blocks, SizeIs(2));
  EXPECT_FALSE(kv.Grow(13, table));
  EXPECT_THAT(table.blocks, SizeIs(2));
  EXPECT_EQ(kv.available_blocks(), 1);
  EXPECT_TRUE(kv.Grow(12, table));
  EXPECT_EQ(kv.used_blocks(), 3);
  EXPECT_THAT(kv.CheckInvariants({&table}), IsOk());
}

TEST(KvBlockManager, SharesOnlyFullBlocksOfAnEqualPrefix) {
  KvBlockManager kv(16, kBlock, true);
  const KvBlockTable first = Computed(Tokens(11), kv);
  std::vector<int32_t> other = Tokens(11);
  other[6] = 99;
  KvBlockTable second;
  EXPECT_EQ(kv.Attach(other, 10, second), 4);
  EXPECT_THAT(second.blocks, ElementsAre(first.blocks[0]));
  KvBlockTable third;
  EXPECT_EQ(kv.Attach(Tokens(11), 10, third), 8);
  EXPECT_THAT(third.blocks, ElementsAre(first.blocks[0], first.blocks[1]));
  EXPECT_EQ(kv.used_blocks(), 3);
  EXPECT_THAT(kv.CheckInvariants({&first, &second, &third}), IsOk());
}

TEST(KvBlockManager, LeavesTheLastTokensToBeRecomputed) {
  KvBlockManager kv(16, kBlock, true);
  const KvBlockTable first = Computed(Tokens(8), kv);
  KvBlockTable second;
  EXPECT_EQ(kv.Attach(Tokens(8), 7, second), 4);
}

TEST(KvBlockManager, SameTokensBehindAnotherPrefixAreNoMatch) {
  KvBlockManager kv(16, kBlock, true);
  const KvBlockTable first = Computed({1, 1, 1, 1, 5, 6, 7, 8}, kv);
  KvBlockTable second;
  EXPECT_EQ(kv.Attach(std::vector<int32_t>{5, 6, 7, 8, 9}, 4, second), 0);
  KvBlockTable third;
  EXPECT_EQ(kv.Attach(std::vector<int32_t>{2, 2, 2, 2, 5, 6, 7, 8, 9}, 8, third), 0);
}

TEST(KvBlockManager, BlocksAreFoundAgainAfterRelease) {
  KvBlockManager kv(4, kBlock, true);
  KvBlockTable first = Computed(Tokens(8), kv);
  const std::vector<int32_t> blocks = first.blocks;
  kv.Release(first);
  EXPECT_EQ(kv.used_blocks(), 0);
  EXPECT_EQ(kv.cached_blocks(), 2);
  KvBlockTable second;
  EXPECT_EQ(kv.Attach(Tokens(9), 8, second), 8);
  EXPECT_EQ(second.blocks, blocks);
  EXPECT_THAT(kv.CheckInvariants({&second}), IsOk());
}

TEST(KvBlockManager, EvictsTheLeastRecentlyUsedAndOfAChainItsEnd) {
  KvBlockManager kv(4, kBlock, true);
  KvBlockTable old_chain = Computed(Tokens(8), kv);
  KvBlockTable new_chain = Computed(Tokens(8, 50), kv);
  kv.Release(old_chain);
  kv.Release(new_chain);
  KvBlockTable table;
  ASSERT_TRUE(kv.Grow(kBlock, table));
  EXPECT_EQ(kv.CountCached(Tokens(8), 8), 4);
  EXPECT_EQ(kv.CountCached(Tokens(8, 50), 8), 8);
  ASSERT_TRUE(kv.Grow(2 * kBlock, table));
  EXPECT_EQ(kv.CountCached(Tokens(8), 8), 0);
  EXPECT_EQ(kv.CountCached(Tokens(8, 50), 8), 8);
  EXPECT_THAT(kv.CheckInvariants({&table}), IsOk());
}

TEST(KvBlockManager, NeverEvictsAReferencedBlock) {
  KvBlockManager kv(2, kBlock, true);
  KvBlockTable held = Computed(Tokens(8), kv);
  KvBlockTable other;
  EXPECT_FALSE(kv.Grow(1, other));
  kv.FlushCache();
  EXPECT_EQ(kv.CountCached(Tokens(8), 8), 8);
  kv.Release(held);
  EXPECT_TRUE(kv.Grow(8, other));
}

TEST(KvBlockManager, TwoThatComputedTheSameKeepOneBlock) {
  KvBlockManager kv(8, kBlock, true);
  KvBlockTable first;
  KvBlockTable second;
  ASSERT_TRUE(kv.Grow(8, first));
  ASSERT_TRUE(kv.Grow(8, second));
  kv.Commit(Tokens(8), 8, first);
  kv.Commit(Tokens(8), 8, second);
  EXPECT_EQ(second.blocks, first.blocks);
  EXPECT_EQ(kv.used_blocks(), 2);
  EXPECT_THAT(kv.CheckInvariants({&first, &second}), IsOk());
}

TEST(KvBlockManager, WhatIsNotComputedIsNotShared) {
  KvBlockManager kv(8, kBlock, true);
  KvBlockTable first;
  ASSERT_TRUE(kv.Grow(8, first));
  kv.Commit(Tokens(8), 7, first);
  EXPECT_EQ(kv.CountCached(Tokens(8), 8), 4);
}

TEST(KvBlockManager, FlushForgetsUnreferencedBlocks) {
  KvBlockManager kv(8, kBlock, true);
  KvBlockTable first = Computed(Tokens(8), kv);
  kv.Release(first);
  kv.FlushCache();
  EXPECT_EQ(kv.cached_blocks(), 0);
  EXPECT_EQ(kv.available_blocks(), 8);
  EXPECT_THAT(kv.CheckInvariants({}), IsOk());
}

TEST(KvBlockManager, WithoutThePrefixCacheNothingIsFoundAgain) {
  KvBlockManager kv(8, kBlock, false);
  KvBlockTable first = Computed(Tokens(8), kv);
  KvBlockTable second;
  EXPECT_EQ(kv.Attach(Tokens(8), 7, second), 0);
  kv.Fork(first, 1, second);
  EXPECT_THAT(second.blocks, ElementsAre(first.blocks[0]));
  kv.Release(first);
  EXPECT_EQ(kv.used_blocks(), 1);
  EXPECT_THAT(kv.CheckInvariants({&second}), IsOk());
}

TEST(KvBlockManager, InvariantsNoticeALostReference) {
  KvBlockManager kv(8, kBlock, true);
  const KvBlockTable held = Computed(Tokens(8), kv);
  EXPECT_FALSE(kv.CheckInvariants({}).ok());
}

TEST(KvBlockManager, BooksAgreeUnderRandomUse) {
  constexpr uint64_t kSeed = 11;
  std::cout << "seed=" << kSeed << "\n";
  std::mt19937_64 random(kSeed);
  const auto below = [&](int limit) {
    return std::uniform_int_distribution<int>(0, limit - 1)(random);
  };
  KvBlockManager kv(12, kBlock, true);
  std::vector<KvBlockTable> tables(5);
  std::vector<std::vector<int32_t>> tokens(tables.size());
  for (int step = 0; step < 20000; ++step) {
    const size_t i = static_cast<size_t>(below(static_cast<int>(tables.size())));
    if (!tables[i].blocks.empty() && below(3) == 0) {
      kv.Release(tables[i]);
    } else if (tables[i].blocks.empty()) {
      tokens[i] = Tokens(1 + below(30), below(2));
      if (below(2) == 0)
        tokens[i][static_cast<size_t>(below(static_cast<int>(tokens[i].size())))] = 99;
      kv.Attach(tokens[i], static_cast<int>(tokens[i].size()) - 1, tables[i]);
      if (!kv.Grow(static_cast<int>(tokens[i].size()), tables[i])) kv.Release(tables[i]);
    } else {
      kv.Commit(tokens[i], below(static_cast<int>(tokens[i].size()) + 1), tables[i]);
    }
    if (below(100) == 0) kv.FlushCache();
    std::vector<const KvBlockTable*> all;
    for (const KvBlockTable& table : tables) all.push_back(&table);
    ASSERT_THAT(kv.CheckInvariants(all), IsOk()) << "step " << step;
  }
}

}  // namespace
}  // namespace atelier
