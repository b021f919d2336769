#include "services/expert-worker/store_host.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/clock.h"
#include "libs/base/float16.h"
#include "libs/kernels/cpu_features.h"
#include "libs/numa/topology.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "services/expert-worker/choose_method.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ShardsWithout, LoseLayersOfTheSameExpertsAndSlice) {
  const std::vector<ShardSpec> held = {{{1, 2, 3}, 0, 8, 0, 1}, {{1, 3}, 8, 16, 0, 2}};
  EXPECT_EQ(Without(held, {}), held);
  EXPECT_EQ(Without(held, {{{1, 2, 3}, 0, 7, 0, 1}, {{1}, 8, 16, 1, 2}}), held);
  EXPECT_THAT(Without(held, {{{1, 3}, 0, 8, 0, 1}, {{1}, 8, 16, 0, 2}, {{2, 3}, 8, 16, 0, 2}}),
              ElementsAre(ShardSpec{{2}, 0, 8, 0, 1}));
  EXPECT_THAT(Without({}, held), IsEmpty());
}

// The tiny GLM model: H 256, layers 1-3 with 16 experts of I 192.
class StoreHostTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kExpertBytes = 3 * 256 * 192 * 2;

  void SetUp() override {
    testing::WriteSyntheticCheckpoint(dir_.path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 7});
    ATELIER_ASSERT_OK_AND_ASSIGN(checkpoint_, Checkpoint::Open(dir_.path()));
    ATELIER_ASSERT_OK_AND_ASSIGN(
        arena_, NodeArena::Create({.pin_threads = false}, Topology::Detect(), logger_));
    ATELIER_ASSERT_OK_AND_ASSIGN(KernelTable kernels,
                                 KernelTable::Select(CpuFeatures::Detect(), CpuIsa::kAuto));
    kernels_ = std::make_unique<KernelTable>(std::move(kernels));
    host_ = Host({{{}, 0, 8, 0, 1}});
    ATELIER_ASSERT_OK_AND_ASSIGN(held_, host_->Start());
  }
  std::unique_ptr<StoreHost> Host(std::vector<ShardSpec> shards) {
    ExpertStoreOptions options;
    options.methods = UniformMethods(checkpoint_->config(), Method::kBF16);
    options.shards = std::move(shards);
    if (GetParam()) options.store_dir = store_.path();
    return std::make_unique<StoreHost>(
        std::move(options), StoreHost::Context{*checkpoint_, *kernels_, *arena_, clock_, logger_});
  }
  // The sums of each shard that has the layer, of one row with one expert of each eight.
  static std::vector<std::vector<float>> Sums(const HeldShards& held, int layer) {
    const std::vector<BFloat16> row(256, ToBFloat16(0.5f));
    const std::vector<int32_t> ids = {3, 11};
    const std::vector<float> weights = {0.25f, 0.75f};
    std::vector<std::vector<float>> sums(held.shards.size(), std::vector<float>(256));
    std::vector<float*> out;
    for (std::vector<float>& sum : sums) out.push_back(sum.data());
    held.executor->Forward({layer, {1, 256, row.data()}, {1, 2, ids.data(), weights.data()}}, out);
    return sums;
  }

  testing::TempDir dir_;
  testing::TempDir store_;
  Logger logger_{Severity::kError};
  SystemClock clock_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<NodeArena> arena_;
  std::unique_ptr<KernelTable> kernels_;
  std::unique_ptr<StoreHost> host_;
  HeldShards held_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreHostTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "mapped" : "packed"; });

TEST_P(StoreHostTest, WhatComesAndGoesHasTheBitsOfWhatWasThereAtOnce) {
  const auto whole = Host({{{}, 0, 8, 0, 1}, {{}, 8, 16, 0, 1}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards both, whole->Start());
  const auto expected = Sums(both, 2);
  const auto expected_3 = Sums(both, 3);
  EXPECT_EQ(host_->bytes(), 3 * 8 * kExpertBytes);

  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards more, host_->Load({{{1, 2}, 8, 16, 0, 1}}));
  EXPECT_THAT(more.shards,
              ElementsAre(ShardSpec{{1, 2, 3}, 0, 8, 0, 1}, ShardSpec{{1, 2}, 8, 16, 0, 1}));
  EXPECT_THAT(more.expert_bytes, ElementsAre(kExpertBytes, kExpertBytes));
  EXPECT_EQ(host_->bytes(), 5 * 8 * kExpertBytes);
  EXPECT_EQ(Sums(more, 2), expected);

  // Half of what was there at first goes; its layers 1 and 3 stay where they are.
  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards fewer, host_->Unload({{{2}, 0, 8, 0, 1}}));
  EXPECT_THAT(fewer.shards,
              ElementsAre(ShardSpec{{1, 3}, 0, 8, 0, 1}, ShardSpec{{1, 2}, 8, 16, 0, 1}));
  EXPECT_EQ(host_->bytes(), 4 * 8 * kExpertBytes);
  EXPECT_EQ(Sums(fewer, 2)[1], expected[1]);
  EXPECT_EQ(Sums(fewer, 3)[0], expected_3[0]);
  // Who still has the former state computes as before.
  EXPECT_EQ(Sums(more, 2), expected);
  EXPECT_EQ(Sums(held_, 2)[0], expected[0]);

  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards rest, host_->Load({{{}, 8, 16, 0, 1}}));
  EXPECT_THAT(rest.shards,
              ElementsAre(ShardSpec{{1, 3}, 0, 8, 0, 1}, ShardSpec{{1, 2}, 8, 16, 0, 1},
                          ShardSpec{{3}, 8, 16, 0, 1}));
  EXPECT_EQ(Sums(rest, 3)[2], expected_3[1]);
}

TEST_P(StoreHostTest, WhatIsThereOrGoneAlreadyChangesNothing) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards same, host_->Load({{{2}, 0, 8, 0, 1}}));
  EXPECT_EQ(same.executor, held_.executor);
  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards also, host_->Unload({{{}, 8, 16, 0, 1}}));
  EXPECT_EQ(also.executor, held_.executor);
}

TEST_P(StoreHostTest, RefusesWhatDoesNotFitAndStaysAsItWas) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(host_->Load({{{}, 4, 12, 0, 1}}),
              StatusIs(kInvalid, HasSubstr("same weights twice")));
  EXPECT_THAT(host_->Load({{{}, 0, 8, 0, 2}}), StatusIs(kInvalid, HasSubstr("same weights twice")));
  EXPECT_THAT(host_->Load({{{}, 8, 17, 0, 1}}), StatusIs(kInvalid, HasSubstr("shards: experts")));
  EXPECT_THAT(host_->Load({{{0}, 8, 16, 0, 1}}), StatusIs(kInvalid, HasSubstr("layer 0")));
  EXPECT_THAT(host_->Load({}), StatusIs(kInvalid, HasSubstr("shards")));
  EXPECT_THAT(host_->Unload({{{}, 0, 4, 0, 1}}), StatusIs(kInvalid, HasSubstr("cuts into")));
  EXPECT_THAT(host_->Unload({{{}, 0, 8, 0, 1}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("all this worker holds")));
  ATELIER_ASSERT_OK_AND_ASSIGN(const HeldShards same, host_->Load({{{}, 0, 8, 0, 1}}));
  EXPECT_EQ(same.executor, held_.executor);
}

}  // namespace
}  // namespace atelier
