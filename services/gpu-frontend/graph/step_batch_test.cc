#include "services/gpu-frontend/graph/step_batch.h"

#include <vector>

#include "gtest/gtest.h"
#include "libs/device/cpu/cpu_device.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"

namespace atelier {
namespace {

// Room for two sequences, 5 tokens and 3 blocks of 2 tokens each, out of 4 blocks.
class StepBatchTest : public ::testing::Test {
 protected:
  StepBatch Upload(std::vector<SequenceStep> steps) {
    const StepBatch batch = UploadStep(steps, limits_, 2, 4, *space_, *stream_);
    EXPECT_THAT(stream_->Synchronize(), testing::IsOk());
    return batch;
  }
  template <typename T>
  static std::vector<T> First(DeviceBuffer& buffer, size_t count) {
    return {buffer.As<T>(), buffer.As<T>() + count};
  }

  const StepLimits limits_{5, 2, 3, 512};
  const std::unique_ptr<Device> device_ = CreateCpuDevice({}).value();
  const std::unique_ptr<DeviceStream> stream_ = device_->CreateStream();
  const std::unique_ptr<Workspace> space_ =
      Workspace::Create(*device_, ParseModelConfig(testing::TinyQwen3MoeConfig()).value(), limits_)
          .value();
  const std::vector<int32_t> prompt_ = {11, 12, 13}, next_ = {21};
  const std::vector<int32_t> two_blocks_ = {3, 1}, one_block_ = {2};
};

TEST_F(StepBatchTest, LaysOutAPrefillChunkBesideADecodedToken) {
  const StepBatch batch = Upload({{next_, 1, one_block_, 1}, {prompt_, 1, two_blocks_, 2}});
  EXPECT_EQ(batch.rows, 4);
  EXPECT_EQ(batch.max_blocks, 2);
  EXPECT_TRUE(batch.prefill);
  EXPECT_EQ(First<int32_t>(*space_->tokens, 4), (std::vector<int32_t>{21, 11, 12, 13}));
  EXPECT_EQ(First<int32_t>(*space_->positions, 4), (std::vector<int32_t>{1, 1, 2, 3}));
  EXPECT_EQ(First<int32_t>(*space_->sequences, 4), (std::vector<int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(First<int64_t>(*space_->slots, 4), (std::vector<int64_t>{5, 7, 2, 3}));
  EXPECT_EQ(First<int32_t>(*space_->block_tables, 1), (std::vector<int32_t>{2}));
  EXPECT_EQ(First<int32_t>(*space_->logit_rows, 3), (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(batch.num_logits, 3);
}

TEST_F(StepBatchTest, OneTokenASequenceIsNoPrefill) {
  EXPECT_FALSE(Upload({{next_, 1, one_block_, 1}}).prefill);
}

using StepBatchDeathTest = StepBatchTest;

TEST_F(StepBatchDeathTest, StopsOnWhatOnlyABrokenEngineSends) {
  const std::vector<int32_t> beyond_vocabulary = {512}, negative = {-1}, no_such_block = {4};
  const std::vector<int32_t> too_many = {1, 2, 3, 4, 5, 6}, four_blocks = {0, 1, 2, 3};
  EXPECT_DEATH(Upload({{beyond_vocabulary, 0, one_block_, 0}}), "vocab_size");
  EXPECT_DEATH(Upload({{negative, 0, one_block_, 0}}), "vocab_size");
  EXPECT_DEATH(Upload({{next_, 0, no_such_block, 0}}), "num_blocks");
  EXPECT_DEATH(Upload({{next_, 2, one_block_, 0}}), "block_table");
  EXPECT_DEATH(Upload({{next_, 0, one_block_, 2}}), "num_logits");
  EXPECT_DEATH(Upload({{next_, 0, four_blocks, 0}}), "max_blocks");
  EXPECT_DEATH(Upload({{too_many, 0, two_blocks_, 0}}), "block_table");
  EXPECT_DEATH(Upload({{prompt_, 0, two_blocks_, 0}, {prompt_, 0, two_blocks_, 0}}), "max_tokens");
}

}  // namespace
}  // namespace atelier
