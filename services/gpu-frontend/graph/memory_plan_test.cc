#include "services/gpu-frontend/graph/memory_plan.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MemoryPlan, FitsExactlyAndNotOneByteLess) {
  const MemoryPlan plan{700, 200, 100};
  ATELIER_EXPECT_OK(plan.CheckFits(1000));
  EXPECT_THAT(plan.CheckFits(999),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr("1000 bytes"), HasSubstr("weights 700"),
                                      HasSubstr("KV cache 200"), HasSubstr("workspace 100"),
                                      HasSubstr("999 free"))));
}

TEST(MemoryPlan, CountsMatricesAsBf16AndVectorsAndRoutersAsFp32) {
  const ModelConfig config = ParseModelConfig(testing::TinyQwen3MoeConfig()).value();
  const int64_t hidden = 256, vocab = 512, q = 8 * 64, kv = 2 * 64, experts = 8;
  const int64_t layer_bf16 = q * hidden + 2 * kv * hidden + hidden * q;
  const int64_t layer_fp32 = 2 * hidden + 2 * 64 + experts * hidden;
  EXPECT_EQ(WeightBytes(config),
            2 * (2 * vocab * hidden + 4 * layer_bf16) + 4 * (hidden + 4 * layer_fp32));
}

TEST(MemoryPlan, CountsExpertsOfTheDeviceAndRoomForTheirRows) {
  const ModelConfig config = ParseModelConfig(testing::TinyQwen3MoeConfig()).value();
  const int64_t hidden = config.hidden_size, width = config.moe.intermediate_size;
  const ExpertSet experts = ExpertSet::Parse("0: 1\n3: 0-2,7", config).value();
  EXPECT_EQ(DeviceExpertBytes(config, experts), 5 * 3 * hidden * width * 2);
  EXPECT_EQ(DeviceExpertBytes(config, ExpertSet()), 0);
  constexpr int kTokens = 10;
  const int64_t rows = 2 * kTokens * hidden * 4;
  const int64_t choices = 4 * kTokens * config.moe.top_k * 4;
  const int64_t widest =
      std::max(config.dense_intermediate_size, config.moe.shared_intermediate_size);
  const int64_t wider = 3 * kTokens * std::max<int64_t>(0, width - widest) * 4;
  EXPECT_EQ(WorkspaceBytes(config, {kTokens, 2, 4, true}) - WorkspaceBytes(config, {kTokens, 2, 4}),
            rows + choices + wider);
}

TEST(MemoryPlan, CountsATiedEmbeddingTwice) {
  const ModelConfig own = ParseModelConfig(testing::TinyQwen3MoeConfig()).value();
  const ModelConfig tied =
      ParseModelConfig(testing::TinyQwen3MoeConfig(R"({"tie_word_embeddings": true})")).value();
  EXPECT_EQ(WeightBytes(tied), WeightBytes(own));
}

}  // namespace
}  // namespace atelier
