#include "services/expert-worker/batch_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/executor_fixture.h"
#include "services/expert-worker/expert_store.h"

namespace atelier {
namespace {

using testing::TestBatch;

constexpr int kHidden = 2048, kInner = 768, kNumExperts = 128;
constexpr testing::TestLayer kTestLayer{0, kHidden, kNumExperts};

// Shapes without weights: a plan reads none.
class ShapeStore final : public ExpertStore {
 public:
  explicit ShapeStore(std::vector<ShardSpec> shards) : shards_(std::move(shards)) {
    for (size_t i = 0; i < shards_.size() * kNumExperts; ++i) {
      ExpertView view;
      view.gate = view.up = {Method::kINT8, kInner, kHidden, nullptr, nullptr, false};
      view.down = {Method::kINT8, kHidden, kInner, nullptr, nullptr, false};
      views_.push_back(view);
    }
  }
  const std::vector<ShardSpec>& shards() const override { return shards_; }
  Method method() const override { return Method::kINT8; }
  int hidden_size() const override { return kHidden; }
  int num_experts() const override { return kNumExperts; }
  bool HoldsLayer(int, int layer) const override { return layer == 0; }
  const ExpertView& expert(int shard, int, int expert) const override {
    return views_[static_cast<size_t>(shard * kNumExperts + expert)];
  }
  int64_t bytes() const override { return 0; }

 private:
  std::vector<ShardSpec> shards_;
  std::vector<ExpertView> views_;
};

ShardSpec Shard(int expert_begin, int expert_end) { return {{0}, expert_begin, expert_end, 0, 1}; }

TestBatch OneExpert(int num_tokens) {
  TestBatch batch = kTestLayer.RandomBatch(num_tokens, 1, 1);
  std::fill(batch.ids.begin(), batch.ids.end(), 5);
  return batch;
}

void ExpectEachPanelOnce(const std::vector<std::pair<int, int>>& ranges, int num_panels) {
  std::vector<int> covered(static_cast<size_t>(num_panels), 0);
  for (const auto& [begin, end] : ranges) {
    ASSERT_LE(end - begin, BatchPlan::kMaxTaskPanels);
    for (int panel = begin; panel < end; ++panel) ++covered[static_cast<size_t>(panel)];
  }
  EXPECT_EQ(covered, std::vector<int>(covered.size(), 1));
}

TEST(BatchPlan, TasksCoverEveryPanelOfEveryUnitOnce) {
  const ShapeStore store({Shard(0, 128), Shard(3, 9)});
  BatchPlan plan;
  std::vector<TestBatch> batches = {OneExpert(1024)};
  for (const int num_tokens : {0, 1, 2, 65, 700}) {
    batches.push_back(kTestLayer.RandomBatch(num_tokens, 4, 3));
  }
  for (const TestBatch& batch : batches) {
    for (const int num_threads : {1, 2, 7, 64}) {
      SCOPED_TRACE(::testing::Message()
                   << batch.num_tokens() << " tokens, " << num_threads << " threads");
      plan.Make(store, batch.view(), num_threads);
      std::map<size_t, std::vector<std::pair<int, int>>> of_unit, of_shard;
      for (const GateUpTask& task : plan.gate_up_tasks()) {
        for (size_t unit = task.unit_begin; unit < task.unit_end; ++unit) {
          of_unit[unit].emplace_back(task.panel_begin, task.panel_end);
        }
      }
      ASSERT_EQ(of_unit.size(), plan.units().size());
      for (const auto& [unit, ranges] : of_unit) {
        EXPECT_EQ(ranges.size(), static_cast<size_t>(plan.units()[unit].num_tasks));
        ASSERT_NO_FATAL_FAILURE(ExpectEachPanelOnce(ranges, kInner / kPanelWidth));
      }
      for (const DownTask& task : plan.down_tasks()) {
        of_shard[task.shard].emplace_back(task.panel_begin, task.panel_end);
      }
      ASSERT_EQ(of_shard.size(), 2u);
      for (const auto& [shard, ranges] : of_shard) {
        ASSERT_NO_FATAL_FAILURE(ExpectEachPanelOnce(ranges, kHidden / kPanelWidth));
      }
    }
  }
}

TEST(BatchPlan, UnitsHoldEveryRouteOnceExpertByExpertTokenByToken) {
  const ShapeStore store({Shard(0, 128), Shard(3, 9)});
  const TestBatch batch = kTestLayer.RandomBatch(300, 8, 4);
  BatchPlan plan;
  plan.Make(store, batch.view(), 2);
  std::vector<RoutedRow> want;
  for (const ShardSpec& shard : store.shards()) {
    for (int expert = shard.expert_begin; expert < shard.expert_end; ++expert) {
      for (size_t i = 0; i < batch.ids.size(); ++i) {
        if (batch.ids[i] == expert) {
          want.push_back({static_cast<int32_t>(i / 8), batch.weights[i], 0});
        }
      }
    }
  }
  ASSERT_EQ(plan.rows().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(plan.rows()[i].token, want[i].token);
    EXPECT_EQ(plan.rows()[i].weight, want[i].weight);
  }
  size_t next_row = 0;
  for (const RowUnit& unit : plan.units()) {
    EXPECT_EQ(unit.first_row, next_row);
    EXPECT_GE(unit.num_rows, 1);
    EXPECT_LE(unit.num_rows, BatchPlan::kMaxUnitRows);
    next_row += static_cast<size_t>(unit.num_rows);
  }
  EXPECT_EQ(next_row, want.size());
}

TEST(BatchPlan, RowsOfConsecutiveTokensAreNotCopied) {
  const ShapeStore store({Shard(0, 128)});
  BatchPlan plan;
  TestBatch batch = OneExpert(100);
  plan.Make(store, batch.view(), 2);
  for (const RowUnit& unit : plan.units()) EXPECT_TRUE(unit.consecutive);
  EXPECT_EQ(plan.route_rows(), std::vector<int32_t>(100, BatchPlan::kNoRow));

  batch.ids[40] = 6;  // a hole in the first unit of expert 5; alone at expert 6
  plan.Make(store, batch.view(), 2);
  ASSERT_EQ(plan.units().size(), 3u);
  EXPECT_FALSE(plan.units()[0].consecutive);
  EXPECT_TRUE(plan.units()[1].consecutive);
  EXPECT_TRUE(plan.units()[2].consecutive);
  EXPECT_EQ(plan.route_rows()[39], 39);
  EXPECT_EQ(plan.route_rows()[40], BatchPlan::kNoRow);
  EXPECT_EQ(plan.route_rows()[41], 40);
}

// The more threads, the finer the cuts: neither many rows of one expert nor one row of a few leaves
// a thread without work, and the last task is a small part of what each has done.
TEST(BatchPlan, FillsAllThreadsHoweverTheRowsAreSpread) {
  const ShapeStore store({Shard(0, 128)});
  TestBatch one_token = kTestLayer.RandomBatch(1, 8, 2);
  for (size_t i = 0; i < 8; ++i) one_token.ids[i] = static_cast<int32_t>(i * 11);
  BatchPlan plan;
  for (const TestBatch& batch : {OneExpert(1024), one_token, kTestLayer.RandomBatch(64, 8, 6)}) {
    for (const int num_threads : {2, 8, 32}) {
      SCOPED_TRACE(::testing::Message() << batch.num_tokens() << " tokens, " << num_threads);
      plan.Make(store, batch.view(), num_threads);
      EXPECT_EQ(plan.num_threads(), num_threads);
      double total = 0, largest = 0;
      const auto cost = [&](const GateUpTask& task) {
        double rows = 0;
        for (size_t unit = task.unit_begin; unit < task.unit_end; ++unit) {
          rows += std::max(8, plan.units()[unit].num_rows);
        }
        return rows * (task.panel_end - task.panel_begin);
      };
      for (const GateUpTask& task : plan.gate_up_tasks()) {
        total += cost(task);
        largest = std::max(largest, cost(task));
      }
      EXPECT_LE(largest, 0.5 * total / num_threads);
      EXPECT_LE(cost(plan.gate_up_tasks().back()), 0.1 * total / num_threads);
      EXPECT_GE(plan.down_tasks().size(), 3u * static_cast<size_t>(num_threads));
    }
  }
}

TEST(BatchPlan, WakesNoThreadForNothing) {
  const ShapeStore store({Shard(0, 128)});
  BatchPlan plan;
  plan.Make(store, kTestLayer.RandomBatch(0, 8, 1).view(), 16);
  EXPECT_EQ(plan.num_threads(), 1);
  EXPECT_TRUE(plan.gate_up_tasks().empty());
}

}  // namespace
}  // namespace atelier
