#include "libs/client/routing_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::HasSubstr;

// Numbered by its address: "a" is 0.
DescribedWorker Worker(std::string address, std::vector<ShardSpec> shards) {
  DescribedWorker worker;
  worker.number = static_cast<size_t>(address[0] - 'a');
  worker.address = std::move(address);
  worker.description.model_digest = "abc";
  worker.description.hidden_size = 64;
  worker.description.num_experts = 16;
  worker.description.method = "BF16";
  worker.description.shards = std::move(shards);
  return worker;
}

const std::vector<int> kLayers = {1, 2, 3};

TEST(RoutingTable, OrdersShardsByExpertAndSliceWhateverTheOrderOfWorkers) {
  const DescribedWorker a = Worker("a", {{kLayers, 8, 16, 0, 1}});
  const DescribedWorker b = Worker("b", {{kLayers, 0, 8, 1, 2}});
  const DescribedWorker c = Worker("c", {{kLayers, 0, 8, 0, 2}});
  std::vector<DescribedWorker> workers = {a, b, c};
  do {
    ATELIER_ASSERT_OK_AND_ASSIGN(const RoutingTable table, RoutingTable::Build(workers, {}));
    ASSERT_NE(table.Layer(2), nullptr);
    std::string order;
    for (const RoutedShard& shard : table.Layer(2)->shards) {
      order += static_cast<char>('a' + shard.replicas.at(0).worker);
    }
    EXPECT_EQ(order, "cba");
  } while (std::next_permutation(
      workers.begin(), workers.end(),
      [](const DescribedWorker& x, const DescribedWorker& y) { return x.address < y.address; }));
}

TEST(RoutingTable, AWorkerMayHoldSeveralShards) {
  const std::vector<DescribedWorker> workers = {
      Worker("a", {{{1}, 0, 16, 0, 1}, {{2, 3}, 0, 16, 1, 2}}),
      Worker("b", {{{2, 3}, 0, 16, 0, 2}})};
  ATELIER_ASSERT_OK_AND_ASSIGN(const RoutingTable table, RoutingTable::Build(workers, {}));
  EXPECT_EQ(table.Layer(0), nullptr);
  const std::vector<RoutedShard>& first = table.Layer(1)->shards;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].replicas.at(0).shard, 0);
  const std::vector<RoutedShard>& third = table.Layer(3)->shards;
  ASSERT_EQ(third.size(), 2u);
  EXPECT_EQ(third[1].replicas.at(0).worker, 0u);
  EXPECT_EQ(third[1].replicas.at(0).shard, 1);
}

TEST(RoutingTable, WorkersOfTheSameShardAreItsReplicas) {
  const std::vector<DescribedWorker> workers = {
      Worker("a", {{kLayers, 0, 16, 0, 2}}), Worker("b", {{kLayers, 0, 16, 1, 2}}),
      Worker("c", {{{2, 3}, 0, 16, 0, 2}}), Worker("d", {{{2}, 0, 16, 1, 2}, {{3}, 0, 16, 0, 2}})};
  ATELIER_ASSERT_OK_AND_ASSIGN(const RoutingTable table, RoutingTable::Build(workers, {}));
  EXPECT_EQ(table.Layer(1)->shards.at(0).replicas.size(), 1u);
  EXPECT_EQ(table.Layer(2)->shards.at(0).replicas.size(), 2u);  // a and c
  EXPECT_EQ(table.Layer(2)->shards.at(1).replicas.size(), 2u);  // b and d
  ASSERT_EQ(table.Layer(3)->shards.at(0).replicas.size(), 3u);  // a, c and d
  EXPECT_EQ(table.Layer(3)->shards.at(0).replicas.at(2).worker, 3u);
  EXPECT_EQ(table.Layer(3)->shards.at(0).replicas.at(2).shard, 1);
}

TEST(RoutingTable, PartsAreTheSameWhoeverHoldsThem) {
  const auto table = [](const std::vector<DescribedWorker>& workers) {
    return RoutingTable::Build(workers, {}).value();
  };
  const ShardSpec low{kLayers, 0, 8, 0, 1}, high{kLayers, 8, 16, 0, 1};
  const RoutingTable apart = table({Worker("a", {low}), Worker("b", {high})});
  EXPECT_TRUE(apart.HasSamePartsIn(table({Worker("a", {high, low})})));
  EXPECT_TRUE(apart.HasSamePartsIn(table({Worker("a", {high, low, {{9}, 0, 16, 0, 1}})})));
  EXPECT_FALSE(apart.HasSamePartsIn(table({Worker("a", {{kLayers, 0, 16, 0, 1}})})));
  EXPECT_FALSE(
      apart.HasSamePartsIn(table({Worker("a", {low}), Worker("b", {{kLayers, 8, 16, 0, 2}}),
                                  Worker("c", {{kLayers, 8, 16, 1, 2}})})));
  EXPECT_FALSE(apart.HasSamePartsIn(table({Worker("a", {{{1}, 0, 8, 0, 1}, {{1}, 8, 16, 0, 1}})})));
}

TEST(RoutingTable, ShardsOfTheSameWorkersAreOneGroup) {
  const ShardSpec low{kLayers, 0, 8, 0, 1}, high{kLayers, 8, 16, 0, 1};
  const auto groups = [](const std::vector<DescribedWorker>& workers) {
    return RoutingTable::Build(workers, {}).value().Layer(1)->groups;
  };
  const auto whole = groups({Worker("a", {low, high}), Worker("b", {low, high})});
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].workers, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(whole[0].shards, (std::vector<size_t>{0, 1}));
  EXPECT_FALSE(whole[0].holds_more);
  const auto parts = groups({Worker("a", {low, high}), Worker("b", {high})});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].workers, std::vector<size_t>{0});
  EXPECT_TRUE(parts[0].holds_more);  // a's call for the low experts must not compute the high ones
  EXPECT_EQ(parts[1].workers, (std::vector<size_t>{0, 1}));
}

struct Misfit {
  std::string name;
  std::vector<DescribedWorker> workers;
  RoutingNeeds needs;
  std::vector<std::string> said;
};

DescribedWorker OtherModel(std::string digest, int hidden, int experts) {
  DescribedWorker worker = Worker("b", {{kLayers, 0, 16, 1, 2}});
  worker.description.model_digest = std::move(digest);
  worker.description.hidden_size = hidden;
  worker.description.num_experts = experts;
  return worker;
}

DescribedWorker OtherMethod(std::string address, int slice) {
  DescribedWorker worker = Worker(std::move(address), {{kLayers, 0, 16, slice, 2}});
  worker.description.method = "INT8";
  return worker;
}

std::vector<Misfit> Misfits() {
  const DescribedWorker half = Worker("a", {{kLayers, 0, 16, 0, 2}});
  return {
      {"nobody", {}, {}, {"no workers"}},
      {"digest",
       {half, OtherModel("abd", 64, 16)},
       {},
       {"worker b", "digest abd", "worker a has abc"}},
      {"hidden", {half, OtherModel("abc", 65, 16)}, {}, {"worker b", "hidden size 65", "64"}},
      {"experts", {half, OtherModel("abc", 64, 8)}, {}, {"worker b", "number of experts 8", "16"}},
      {"own_digest",
       {Worker("a", {{kLayers, 0, 16, 0, 1}})},
       {"xyz", 0, 0, {}},
       {"worker a", "abc", "this side has xyz"}},
      {"missing_slice", {half}, {}, {"layers 1-3, experts 0-15: no worker holds slice 1/2"}},
      {"double_slice",
       {half, Worker("b", {{{1}, 0, 8, 0, 2}, {kLayers, 0, 16, 1, 2}})},
       {},
       {"layer 1, experts 0-7: slice 0/2 is held by b and a in shards that are not the same"}},
      {"named_twice",
       {Worker("a", {{{1}, 0, 16, 0, 1}, {kLayers, 0, 16, 0, 1}})},
       {},
       {"layer 1, experts 0-15: all of it is held by a and a"}},
      {"methods",
       {half, OtherMethod("b", 0), OtherMethod("c", 1)},
       {},
       {"layer 1: a and b hold the same shard", "BF16 and INT8"}},
      {"missing_experts",
       {Worker("a", {{kLayers, 0, 8, 0, 1}})},
       {},
       {"layers 1-3, experts 8-15: no worker holds them"}},
      {"one_missing_expert",
       {Worker("a", {{kLayers, 0, 8, 0, 1}, {kLayers, 9, 16, 0, 1}})},
       {},
       {"expert 8: no worker holds them"}},
      {"overlap",
       {Worker("a", {{kLayers, 0, 9, 0, 1}}), Worker("b", {{kLayers, 8, 16, 0, 1}})},
       {},
       {"expert 8: all of it is held by a and b"}},
      {"cuts",
       {half, Worker("b", {{kLayers, 0, 16, 1, 3}})},
       {},
       {"cut into 2 slices by a but into 3 by b"}},
      {"missing_layer",
       {Worker("a", {{kLayers, 0, 16, 0, 1}})},
       {"", 0, 0, {1, 2, 3, 4, 5}},
       {"layers 4-5, experts 0-15: no worker holds them"}},
  };
}

class RoutingTableRefuses : public ::testing::TestWithParam<Misfit> {};

TEST_P(RoutingTableRefuses, AndNamesWhatDoesNotFit) {
  const absl::Status status = RoutingTable::Build(GetParam().workers, GetParam().needs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& text : GetParam().said) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RoutingTableRefuses, ::testing::ValuesIn(Misfits()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace atelier
