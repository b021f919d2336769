#include "libs/model/token_batch.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/model/dtype.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ValidateRoutingTest : public ::testing::Test {
 protected:
  std::vector<BFloat16> rows_ = std::vector<BFloat16>(6);
  std::vector<int32_t> ids_ = {0, 7, -1, 3};
  std::vector<float> weights_ = {1, 1, 1, 1};
  TokenBatch batch_{.num_tokens = 2, .hidden_size = 3, .rows = rows_.data()};
  Routing routing_{
      .num_tokens = 2, .top_k = 2, .expert_ids = ids_.data(), .weights = weights_.data()};
};

TEST_F(ValidateRoutingTest, AcceptsKnownExpertsAndSkips) {
  ATELIER_EXPECT_OK(ValidateRouting(batch_, routing_, 8));
}

TEST_F(ValidateRoutingTest, NamesTokenPositionAndIdOfAnUnknownExpert) {
  ids_[3] = 8;
  EXPECT_THAT(
      ValidateRouting(batch_, routing_, 8),
      StatusIs(kInvalid, AllOf(HasSubstr("token 1, position 1 is 8"), HasSubstr("num_experts=8"))));
}

TEST_F(ValidateRoutingTest, RefusesSizesThatDisagree) {
  routing_.num_tokens = 1;
  EXPECT_THAT(ValidateRouting(batch_, routing_, 8), StatusIs(kInvalid, HasSubstr("disagree")));
  batch_.num_tokens = routing_.num_tokens = -1;
  EXPECT_THAT(ValidateRouting(batch_, routing_, 8), StatusIs(kInvalid, HasSubstr("-1")));
}

TEST_F(ValidateRoutingTest, RefusesEmptyRowsAndMissingArrays) {
  routing_.top_k = 0;
  EXPECT_THAT(ValidateRouting(batch_, routing_, 8), StatusIs(kInvalid, HasSubstr("top_k=0")));
  routing_.top_k = 2;
  batch_.hidden_size = 0;
  EXPECT_THAT(ValidateRouting(batch_, routing_, 8), StatusIs(kInvalid, HasSubstr("hidden_size=0")));
  batch_.hidden_size = 3;
  routing_.weights = nullptr;
  EXPECT_THAT(ValidateRouting(batch_, routing_, 8), StatusIs(kInvalid, HasSubstr("weights")));
}

TEST_F(ValidateRoutingTest, AcceptsABatchWithoutTokens) {
  const TokenBatch batch{.num_tokens = 0, .hidden_size = 3};
  const Routing routing{.num_tokens = 0, .top_k = 2};
  ATELIER_EXPECT_OK(ValidateRouting(batch, routing, 8));
}

TEST(DType, NamesAndSizesAgreeWithTheFormat) {
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kI64), 8u);
  EXPECT_EQ(DTypeBytes(DType::kF8E4M3), 1u);
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("bf16"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(MethodName(Method::kINT8), "INT8");
}

}  // namespace
}  // namespace atelier
