#include "libs/client/row_split.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::ElementsAre;

constexpr int kNumExperts = 64;

DescribedWorker Worker(size_t number, std::vector<ShardSpec> shards) {
  DescribedWorker worker;
  worker.number = number;
  worker.address = std::string(1, static_cast<char>('a' + number));
  worker.description.num_experts = kNumExperts;
  worker.description.hidden_size = 8;
  worker.description.shards = std::move(shards);
  return worker;
}

RoutedLayer LayerOf(const std::vector<DescribedWorker>& workers) {
  return *RoutingTable::Build(workers, {}).value().Layer(0);
}

ShardSpec Experts(int begin, int end) { return {{0}, begin, end, 0, 1}; }

struct RoutedRows {
  RoutedRows(int rows, int k) : num_tokens(rows), top_k(k) {}
  // As a router does: different experts per row, seeded.
  static RoutedRows Random(int rows, int k, unsigned seed) {
    RoutedRows routed(rows, k);
    std::mt19937 random(seed);
    std::vector<int32_t> all(kNumExperts);
    for (int e = 0; e < kNumExperts; ++e) all[static_cast<size_t>(e)] = e;
    for (int row = 0; row < rows; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      routed.ids.insert(routed.ids.end(), all.begin(), all.begin() + k);
    }
    return routed;
  }
  Routing routing() {
    weights.assign(ids.size(), 1.0f);
    return {num_tokens, top_k, ids.data(), weights.data()};
  }
  std::set<int32_t> ActiveIn(const std::vector<int>& rows) const {
    std::set<int32_t> active;
    for (const int row : rows) {
      for (int j = 0; j < top_k; ++j) active.insert(ids[static_cast<size_t>(row * top_k + j)]);
    }
    return active;
  }
  int num_tokens;
  int top_k;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

std::vector<size_t> All(const ReplicaGroup& group) { return group.workers; }

TEST(RowSplit, EveryRowGoesToExactlyOneReplicaOfEachGroupThatItNeeds) {
  const RoutedLayer layer = LayerOf({Worker(0, {Experts(0, 32)}), Worker(1, {Experts(0, 32)}),
                                     Worker(2, {Experts(32, 64)}), Worker(3, {Experts(32, 64)})});
  for (const CallPriority priority : {CallPriority::kDecode, CallPriority::kPrefill}) {
    for (const int rows : {1, 2, 7, 300}) {
      RoutedRows routed = RoutedRows::Random(rows, 2, 7);
      std::vector<std::vector<int>> seen(2, std::vector<int>(static_cast<size_t>(rows), 0));
      for (const CallPart& part : SplitRows(layer, routed.routing(), priority, All)) {
        EXPECT_TRUE(std::is_sorted(part.rows.begin(), part.rows.end()));
        const bool high = part.replicas.at(0) >= 2;
        for (const int row : part.rows) ++seen[high ? 1 : 0][static_cast<size_t>(row)];
      }
      for (int row = 0; row < rows; ++row) {
        const std::set<int32_t> active = routed.ActiveIn({row});
        EXPECT_EQ(seen[0][static_cast<size_t>(row)], *active.begin() < 32 ? 1 : 0);
        EXPECT_EQ(seen[1][static_cast<size_t>(row)], *active.rbegin() >= 32 ? 1 : 0);
      }
    }
  }
}

TEST(RowSplit, ASingleRowGoesToThePreferredReplicaAndNamesTheOthers) {
  const RoutedLayer layer = LayerOf(
      {Worker(0, {Experts(0, 64)}), Worker(1, {Experts(0, 64)}), Worker(2, {Experts(0, 64)})});
  RoutedRows routed = RoutedRows::Random(1, 4, 1);
  const auto parts =
      SplitRows(layer, routed.routing(), CallPriority::kDecode, [](const ReplicaGroup&) {
        return std::vector<size_t>{1, 2, 0};
      });
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_THAT(parts[0].replicas, ElementsAre(1, 2, 0));
}

TEST(RowSplit, WithoutAReplicaThePartIsStillThere) {
  const RoutedLayer layer = LayerOf({Worker(0, {Experts(0, 64)}), Worker(1, {Experts(0, 64)})});
  RoutedRows routed = RoutedRows::Random(3, 4, 1);
  const auto parts = SplitRows(layer, routed.routing(), CallPriority::kDecode,
                               [](const ReplicaGroup&) { return std::vector<size_t>(); });
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_THAT(parts[0].rows, ElementsAre(0, 1, 2));
  EXPECT_TRUE(parts[0].replicas.empty());
}

TEST(RowSplit, RowsOfTheSameExpertsStayTogetherWhileDecoding) {
  const RoutedLayer layer = LayerOf({Worker(0, {Experts(0, 64)}), Worker(1, {Experts(0, 64)})});
  RoutedRows routed(6, 2);
  routed.ids = {1, 2, 3, 4, 2, 1, 4, 3, 1, 2, 3, 4};
  const auto parts = SplitRows(layer, routed.routing(), CallPriority::kDecode, All);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_THAT(parts[0].rows, ElementsAre(0, 2, 4));
  EXPECT_THAT(parts[1].rows, ElementsAre(1, 3, 5));
}

TEST(RowSplit, ActivatesFewerExpertsPerReplicaThanEqualRuns) {
  const RoutedLayer layer = LayerOf({Worker(0, {Experts(0, 64)}), Worker(1, {Experts(0, 64)})});
  size_t greedy = 0, runs = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    RoutedRows routed = RoutedRows::Random(8, 4, seed);
    size_t most = 0;
    for (const CallPart& part : SplitRows(layer, routed.routing(), CallPriority::kDecode, All)) {
      most = std::max(most, routed.ActiveIn(part.rows).size());
    }
    greedy += most;
    runs += std::max(routed.ActiveIn({0, 1, 2, 3}).size(), routed.ActiveIn({4, 5, 6, 7}).size());
  }
  EXPECT_LT(greedy, runs);
}

TEST(RowSplit, ManyRowsOfAPromptAreDividedInEqualRuns) {
  const RoutedLayer layer = LayerOf({Worker(0, {Experts(0, 64)}), Worker(1, {Experts(0, 64)})});
  RoutedRows routed = RoutedRows::Random(301, 4, 3);
  const auto parts = SplitRows(layer, routed.routing(), CallPriority::kPrefill, All);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].rows.size(), 151u);
  EXPECT_EQ(parts[0].rows.back(), 150);
  EXPECT_EQ(parts[1].rows.front(), 151);
}

TEST(RowSplit, MasksWhatTheGroupDoesNotHold) {
  const RoutedLayer layer =
      LayerOf({Worker(0, {Experts(0, 32), Experts(32, 64)}), Worker(1, {Experts(32, 64)})});
  ASSERT_EQ(layer.groups.size(), 2u);
  RoutedRows routed(2, 2);
  routed.ids = {31, 32, -1, 63};
  EXPECT_THAT(MaskExperts(layer, layer.groups[0], routed.routing()), ElementsAre(31, -1, -1, -1));
  EXPECT_THAT(MaskExperts(layer, layer.groups[1], routed.routing()), ElementsAre(-1, 32, -1, 63));
}

}  // namespace
}  // namespace atelier
