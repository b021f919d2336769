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

DescribedWorker Worker(std::string address, std::vector<ShardSpec> shards) {
  DescribedWorker worker;
  worker.address = std::move(address);
  worker.description.model_digest = "abc";
  worker.description.hidden_size = 64;
  worker.description.num_experts = 16;
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
    for (const RoutedShard& shard : *table.Layer(2)) order += workers[shard.worker].address;
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
  ASSERT_EQ(table.Layer(1)->size(), 1u);
  EXPECT_EQ(table.Layer(1)->at(0).shard, 0);
  ASSERT_EQ(table.Layer(3)->size(), 2u);
  EXPECT_EQ(table.Layer(3)->at(1).worker, 0u);
  EXPECT_EQ(table.Layer(3)->at(1).shard, 1);
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
       {half, Worker("b", {{{1}, 0, 16, 0, 2}, {kLayers, 0, 16, 1, 2}})},
       {},
       {"layer 1, experts 0-15: slice 0/2 is held by a and b"}},
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
