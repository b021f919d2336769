#include "services/gpu-frontend/api/request_mapping.h"

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

wire::GenerateRequest MinimalRequest() {
  wire::GenerateRequest request;
  request.set_request_id("r1");
  request.mutable_tokenized()->add_input_ids(5);
  request.mutable_tokenized()->add_input_ids(6);
  return request;
}

MappingLimits Limits() {
  MappingLimits limits;
  limits.max_context = 4096;
  limits.bos_token_id = 1;
  return limits;
}

std::string ErrorOf(const std::function<void(wire::GenerateRequest&)>& change) {
  wire::GenerateRequest request = MinimalRequest();
  change(request);
  const auto mapped = MapGenerateRequest(request, Limits());
  EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument) << mapped.status();
  return std::string(mapped.status().message());
}

TEST(RequestMapping, ZerosOfRawClientsAreDefaults) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest mapped,
                               MapGenerateRequest(MinimalRequest(), Limits()));
  const SamplingOptions& sampling = mapped.request.sampling;
  EXPECT_EQ(mapped.request.id, "r1");
  EXPECT_THAT(mapped.request.prompt, ElementsAre(5, 6));
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_p, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(sampling.n, 1);
  EXPECT_FALSE(sampling.max_new_tokens.has_value());
  EXPECT_FALSE(mapped.stream);
  EXPECT_EQ(mapped.stream_interval, 1);
}

TEST(RequestMapping, CarriesEverySamplingOption) {
  wire::GenerateRequest request = MinimalRequest();
  request.set_stream(true);
  wire::SamplingParams* params = request.mutable_sampling_params();
  params->set_temperature(0.5f);
  params->set_top_p(0.9f);
  params->set_top_k(-1);
  params->set_min_p(0.1f);
  params->set_frequency_penalty(0.2f);
  params->set_presence_penalty(0.3f);
  params->set_repetition_penalty(1.1f);
  params->set_max_new_tokens(0);
  params->set_min_new_tokens(3);
  params->set_ignore_eos(true);
  params->set_n(4);
  params->set_stream_interval(8);
  params->add_stop_token_ids(9);
  (*params->mutable_logit_bias())["17"] = -2.0f;
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest mapped, MapGenerateRequest(request, Limits()));
  const SamplingOptions& sampling = mapped.request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, -1);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.frequency_penalty, 0.2f);
  EXPECT_EQ(sampling.presence_penalty, 0.3f);
  EXPECT_EQ(sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(sampling.max_new_tokens, 0);
  EXPECT_EQ(sampling.min_new_tokens, 3);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.n, 4);
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(9));
  EXPECT_THAT(sampling.logit_bias, ElementsAre(Pair(17, -2.0f)));
  EXPECT_TRUE(mapped.stream);
  EXPECT_EQ(mapped.stream_interval, 8);
}

TEST(RequestMapping, StopStringsAreTheGatewaysBusiness) {
  wire::GenerateRequest request = MinimalRequest();
  request.mutable_sampling_params()->add_stop("END");
  ATELIER_EXPECT_OK(MapGenerateRequest(request, Limits()));
}

TEST(RequestMapping, RefusesEachConstraintByName) {
  const std::string json =
      ErrorOf([](auto& request) { request.mutable_sampling_params()->set_json_schema("{}"); });
  EXPECT_THAT(json, AllOf(HasSubstr("json_schema"), HasSubstr("tool_choice")));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling_params()->set_regex("a+"); }),
              HasSubstr("regex"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling_params()->set_ebnf_grammar("root"); }),
              HasSubstr("ebnf_grammar"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling_params()->set_structural_tag("{}"); }),
              HasSubstr("structural_tag"));
}

TEST(RequestMapping, RefusesWhatItCannotDoByName) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_request_id(""); }), HasSubstr("request_id"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_request_id(std::string(1 << 20, 'x')); }),
              HasSubstr("request_id has 1048576 bytes, at most 512 are taken"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_lora_id("x"); }), HasSubstr("lora_id"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_mm_inputs()->add_image_urls("http://x"); }),
              HasSubstr("mm_inputs"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.add_input_embeds(1); }), HasSubstr("input_embeds"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_return_hidden_states(true); }),
              HasSubstr("return_hidden_states"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_disaggregated_params(); }),
              HasSubstr("disaggregated_params"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_custom_logit_processor("f"); }),
              HasSubstr("custom_logit_processor"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.add_token_ids_logprob(3); }), HasSubstr("token_ids_logprob"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_data_parallel_rank(1); }),
              HasSubstr("data_parallel_rank=1"));
}

void SetSeed(wire::GenerateRequest& request, double seed) {
  google::protobuf::Struct* custom = request.mutable_sampling_params()->mutable_custom_params();
  (*custom->mutable_fields())["seed"].set_number_value(seed);
}

TEST(RequestMapping, ASeedComesAsACustomParameter) {
  wire::GenerateRequest request = MinimalRequest();
  ATELIER_ASSERT_OK_AND_ASSIGN(MappedRequest mapped, MapGenerateRequest(request, Limits()));
  EXPECT_EQ(mapped.request.sampling.seed, std::nullopt);
  SetSeed(request, 0x1p53);
  ATELIER_ASSERT_OK_AND_ASSIGN(mapped, MapGenerateRequest(request, Limits()));
  EXPECT_EQ(mapped.request.sampling.seed, uint64_t{1} << 53);
  for (const double wrong : {-1.0, 0.5, 0x1p54, std::nan("")}) {
    EXPECT_THAT(ErrorOf([wrong](auto& r) { SetSeed(r, wrong); }),
                HasSubstr("custom_params.seed is no whole number"));
  }
  EXPECT_THAT(ErrorOf([](auto& r) {
                auto* custom = r.mutable_sampling_params()->mutable_custom_params();
                (*custom->mutable_fields())["seed"].set_string_value("7");
              }),
              HasSubstr("custom_params.seed is no whole number"));
  EXPECT_THAT(ErrorOf([](auto& r) {
                auto* custom = r.mutable_sampling_params()->mutable_custom_params();
                (*custom->mutable_fields())["other"].set_number_value(7);
              }),
              HasSubstr("custom_params.other"));
}

TEST(RequestMapping, RefusesNumbersThatDoNotFit) {
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_tokenized()->add_input_ids(0x80000000u); }),
              HasSubstr("input_ids: token id 2147483648"));
  EXPECT_THAT(
      ErrorOf([](auto& r) { r.mutable_sampling_params()->set_max_new_tokens(0xffffffffu); }),
      HasSubstr("max_new_tokens=4294967295"));
  EXPECT_THAT(ErrorOf([](auto& r) { r.mutable_sampling_params()->set_n(129); }),
              HasSubstr("n=129 exceeds 128"));
  for (const char* key : {"x", "", " 5", "+5", "05", "-1", "5.0", "99999999999"}) {
    const std::string error =
        ErrorOf([key](auto& r) { (*r.mutable_sampling_params()->mutable_logit_bias())[key] = 1; });
    EXPECT_THAT(error, HasSubstr(absl::StrCat("key \"", key, "\" is not a token id")));
  }
  EXPECT_THAT(ErrorOf([](auto& r) { r.set_top_logprobs_num(-1); }),
              HasSubstr("top_logprobs_num=-1"));
}

TEST(RequestMapping, EmptyPromptStartsFromTheBeginningOfSequence) {
  wire::GenerateRequest request;
  request.set_request_id("r1");
  request.mutable_tokenized();
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest mapped, MapGenerateRequest(request, Limits()));
  EXPECT_THAT(mapped.request.prompt, ElementsAre(1));
  MappingLimits no_bos = Limits();
  no_bos.bos_token_id = -1;
  EXPECT_THAT(MapGenerateRequest(request, no_bos),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input_ids is empty")));
  request.clear_tokenized();
  EXPECT_THAT(MapGenerateRequest(request, Limits()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokenized is missing")));
}

TEST(RequestMapping, LogprobsOfThePromptOnlyWhenAsked) {
  wire::GenerateRequest request = MinimalRequest();
  request.set_return_logprob(true);
  request.set_top_logprobs_num(3);
  request.set_logprob_start_len(-1);
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest without, MapGenerateRequest(request, Limits()));
  EXPECT_TRUE(without.request.logprobs.enabled);
  EXPECT_EQ(without.request.logprobs.top, 3);
  EXPECT_EQ(without.request.logprobs.prompt_start, -1);
  request.set_logprob_start_len(0);
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest with, MapGenerateRequest(request, Limits()));
  EXPECT_EQ(with.request.logprobs.prompt_start, 0);
}

TEST(RequestMapping, LogprobsThatCannotFitOneResponseAreRefusedOrBounded) {
  MappingLimits limits = Limits();
  limits.max_response_bytes = 100 * LogprobBytes(2);
  wire::GenerateRequest request = MinimalRequest();
  request.set_return_logprob(true);
  request.set_top_logprobs_num(2);
  request.set_logprob_start_len(-1);
  ATELIER_ASSERT_OK_AND_ASSIGN(const MappedRequest bounded, MapGenerateRequest(request, limits));
  EXPECT_EQ(bounded.request.sampling.max_new_tokens, 100);
  request.mutable_sampling_params()->set_max_new_tokens(101);
  EXPECT_THAT(MapGenerateRequest(request, limits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_new_tokens=101")));
  request.set_stream(true);
  ATELIER_EXPECT_OK(MapGenerateRequest(request, limits));
  limits.max_backlog_bytes = 50 * LogprobBytes(2);
  request.mutable_sampling_params()->set_max_new_tokens(50);
  ATELIER_EXPECT_OK(MapGenerateRequest(request, limits));
  request.mutable_sampling_params()->set_n(2);
  EXPECT_THAT(MapGenerateRequest(request, limits),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 25 tokens do not fit one stream; ask")));
  request.set_logprob_start_len(0);
  for (int i = 0; i < 99; ++i) request.mutable_tokenized()->add_input_ids(7);
  EXPECT_THAT(MapGenerateRequest(request, limits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("logprob_start_len=0")));
}

}  // namespace
}  // namespace atelier
