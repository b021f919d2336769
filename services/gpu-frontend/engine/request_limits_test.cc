#include "services/gpu-frontend/engine/request_limits.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr RequestLimits kLimits{.vocab_size = 100, .max_context = 32, .kv_capacity = 24};

GenerateRequest Valid() {
  GenerateRequest request;
  request.id = "r";
  request.prompt = {1, 2, 3};
  return request;
}

struct BadField {
  const char* name;
  std::function<void(GenerateRequest&)> spoil;
  const char* field;
  const char* value;
};

class ValidateRequestTest : public ::testing::TestWithParam<BadField> {};

TEST_P(ValidateRequestTest, NamesFieldAndValue) {
  GenerateRequest request = Valid();
  EXPECT_THAT(ValidateRequest(request, kLimits), IsOk());
  GetParam().spoil(request);
  EXPECT_THAT(ValidateRequest(request, kLimits),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(GetParam().field), HasSubstr(GetParam().value))));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
using R = GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    , ValidateRequestTest,
    ::testing::Values(
        BadField{"NoId", [](R& r) { r.id = ""; }, "id", "empty"},
        BadField{"NoPrompt", [](R& r) { r.prompt = {}; }, "prompt", "at least one"},
        BadField{"TokenTooLarge",
                 [](R& r) {
                   r.prompt = {1, 100};
                 },
                 "prompt[1]", "100"},
        BadField{"TokenNegative", [](R& r) { r.prompt = {-1}; }, "prompt[0]", "-1"},
        BadField{"PromptOfTheContext", [](R& r) { r.prompt.assign(32, 1); }, "32", "context"},
        BadField{"PromptOfTheKvCache", [](R& r) { r.prompt.assign(24, 1); }, "24", "KV cache"},
        BadField{"Temperature", [](R& r) { r.sampling.temperature = -1; }, "temperature", "-1"},
        BadField{"TemperatureNan", [](R& r) { r.sampling.temperature = kNan; }, "temperature",
                 "nan"},
        BadField{"TemperatureInf", [](R& r) { r.sampling.temperature = kInf; }, "temperature",
                 "inf"},
        BadField{"TopPZero", [](R& r) { r.sampling.top_p = 0; }, "top_p", "0"},
        BadField{"TopPAboveOne", [](R& r) { r.sampling.top_p = 1.5f; }, "top_p", "1.5"},
        BadField{"MinP", [](R& r) { r.sampling.min_p = 1.5f; }, "min_p", "1.5"},
        BadField{"Frequency", [](R& r) { r.sampling.frequency_penalty = 3; }, "frequency_penalty",
                 "3"},
        BadField{"Presence", [](R& r) { r.sampling.presence_penalty = -3; }, "presence_penalty",
                 "-3"},
        BadField{"RepetitionZero", [](R& r) { r.sampling.repetition_penalty = 0; },
                 "repetition_penalty", "0"},
        BadField{"RepetitionNan", [](R& r) { r.sampling.repetition_penalty = kNan; },
                 "repetition_penalty", "nan"},
        BadField{"BiasToken", [](R& r) { r.sampling.logit_bias[100] = 1; }, "logit_bias", "100"},
        BadField{"BiasInf", [](R& r) { r.sampling.logit_bias[5] = kInf; }, "logit_bias[5]", "inf"},
        BadField{"MaxNew", [](R& r) { r.sampling.max_new_tokens = -1; }, "max_new_tokens", "-1"},
        BadField{"MinNew", [](R& r) { r.sampling.min_new_tokens = -2; }, "min_new_tokens", "-2"},
        BadField{"MinAboveMax",
                 [](R& r) {
                   r.sampling.max_new_tokens = 3;
                   r.sampling.min_new_tokens = 4;
                 },
                 "min_new_tokens=4", "max_new_tokens=3"},
        BadField{"StopToken",
                 [](R& r) {
                   r.sampling.stop_token_ids = {3, 101};
                 },
                 "stop_token_ids", "101"},
        BadField{"EveryTokenForbidden",
                 [](R& r) {
                   for (int32_t id = 0; id < 100; ++id) r.sampling.stop_token_ids.push_back(id);
                   r.sampling.min_new_tokens = 1;
                 },
                 "min_new_tokens=1", "stop_token_ids"},
        BadField{"NZero", [](R& r) { r.sampling.n = 0; }, "n=0", "[1, 128]"},
        BadField{"NHuge", [](R& r) { r.sampling.n = 1000; }, "n=1000", "[1, 128]"},
        BadField{"TopLogprobs", [](R& r) { r.logprobs.top = 101; }, "logprobs.top", "101"},
        BadField{"PromptStart", [](R& r) { r.logprobs.prompt_start = 3; }, "prompt_start", "3"}),
    [](const auto& info) { return info.param.name; });

TEST(ValidateRequest, PromptMayFillTheContextIfNothingIsToFollow) {
  GenerateRequest request = Valid();
  request.prompt.assign(24, 1);
  request.sampling.max_new_tokens = 0;
  EXPECT_THAT(ValidateRequest(request, kLimits), IsOk());
  request.prompt.assign(23, 1);
  request.sampling.max_new_tokens = 1;
  EXPECT_THAT(ValidateRequest(request, kLimits), IsOk());
}

TEST(ValidateRequest, LogprobsOfGivenTokensAreRefusedAsUnimplemented) {
  GenerateRequest request = Valid();
  request.logprobs.token_ids = {1};
  EXPECT_THAT(ValidateRequest(request, kLimits),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("token_ids")));
}

TEST(MaxNewTokens, IsCutToTheRoomLeft) {
  GenerateRequest request = Valid();
  EXPECT_EQ(MaxNewTokens(request, kLimits), 21);
  request.sampling.max_new_tokens = 1000;
  EXPECT_EQ(MaxNewTokens(request, kLimits), 21);
  request.sampling.max_new_tokens = 5;
  EXPECT_EQ(MaxNewTokens(request, kLimits), 5);
  RequestLimits limits = kLimits;
  limits.max_new_tokens_default = 7;
  EXPECT_EQ(MaxNewTokens(request, limits), 5);
  request.sampling.max_new_tokens.reset();
  EXPECT_EQ(MaxNewTokens(request, limits), 7);
}

}  // namespace
}  // namespace atelier
