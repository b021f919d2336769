#include "services/gpu-frontend/api/info_mapping.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "services/gpu-frontend/api/sampling_defaults.h"

namespace atelier {
namespace {

namespace wire = ::sglang::grpc::scheduler;
using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServedModel Model() {
  ServedModel model;
  model.model_path = "/models/m";
  model.tokenizer_path = "/tokenizers/m";
  model.served_model_name = "m";
  model.server_version = "0.1.0";
  model.max_context = 8192;
  model.config.model_type = "some_moe";
  model.config.architectures = {"SomeMoeForCausalLM"};
  model.config.vocab_size = 49152;
  model.config.eos_token_ids = {2, 7};
  model.config.bos_token_id = 1;
  return model;
}

TEST(ModelInfo, NamesWhatTheGatewayReads) {
  wire::GetModelInfoResponse info;
  FillModelInfo(Model(), &info);
  EXPECT_EQ(info.model_path(), "/models/m");
  EXPECT_EQ(info.tokenizer_path(), "/tokenizers/m");
  EXPECT_EQ(info.served_model_name(), "m");
  EXPECT_TRUE(info.is_generation());
  EXPECT_EQ(info.max_context_length(), 8192);
  EXPECT_EQ(info.max_req_input_len(), 8191);
  EXPECT_EQ(info.vocab_size(), 49152);
  EXPECT_THAT(info.architectures(), ElementsAre("SomeMoeForCausalLM"));
  EXPECT_THAT(info.eos_token_ids(), ElementsAre(2, 7));
  EXPECT_EQ(info.bos_token_id(), 1);
  EXPECT_EQ(info.pad_token_id(), 0);  // none: the gateway skips zeros
}

TEST(ServerInfo, ArgsAndTimes) {
  EngineLoad load;
  load.running = 2;
  load.waiting = 1;
  load.total_tokens = 1000;
  ServerTimes times;
  times.started = absl::FromUnixMillis(1500);
  times.now = times.started + absl::Seconds(30);
  times.last_request = absl::InfinitePast();
  wire::GetServerInfoResponse info;
  FillServerInfo(Model(), load, times, &info);
  EXPECT_EQ(info.server_args().fields().at("model_path").string_value(), "/models/m");
  EXPECT_EQ(info.server_args().fields().at("context_length").number_value(), 8192);
  EXPECT_EQ(info.active_requests(), 3);
  EXPECT_EQ(info.uptime_seconds(), 30.0);
  EXPECT_EQ(info.last_receive_timestamp(), 0.0);
  EXPECT_EQ(info.start_time().seconds(), 1);
  EXPECT_EQ(info.start_time().nanos(), 500000000);
  EXPECT_EQ(info.sglang_version(), "0.1.0");
  EXPECT_EQ(info.max_total_num_tokens(), 1000);
}

TEST(Loads, OneRankWithFractionsWithinOne) {
  EngineLoad load;
  load.running = 3;
  load.max_running = 4;
  load.waiting = 5;
  load.used_tokens = 2000;
  load.total_tokens = 1000;
  load.waiting_uncached_tokens = std::numeric_limits<int64_t>::max();
  wire::GetLoadsResponse loads;
  FillLoads(Model(), load, absl::UnixEpoch(), &loads);
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.dp_rank_count(), 1);
  EXPECT_EQ(loads.loads(0).num_total_reqs(), 8);
  EXPECT_EQ(loads.loads(0).token_usage(), 1.0);
  EXPECT_EQ(loads.loads(0).utilization(), 0.75);
  EXPECT_EQ(loads.loads(0).num_waiting_uncached_tokens(), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(loads.loads(0).queues().waiting(), 5);
  EXPECT_EQ(loads.aggregate().total_reqs(), 8);
  load.total_tokens = 0;
  loads.Clear();
  FillLoads(Model(), load, absl::UnixEpoch(), &loads);
  EXPECT_EQ(loads.loads(0).token_usage(), 0.0);
}

TEST(SamplingDefaults, PassesOnTheKnownKeysOnly) {
  EXPECT_EQ(
      DefaultSamplingParams(R"({"eos_token_id": 2, "temperature": 0.6, "top_k": 20})").value(),
      R"({"temperature":0.6,"top_k":20})");
  EXPECT_EQ(DefaultSamplingParams(R"({"eos_token_id": 2, "top_p": null})").value(), "");
}

TEST(SamplingDefaults, RefusesWhatIsNoNumberOrNoObject) {
  EXPECT_THAT(DefaultSamplingParams(R"({"top_p": "high"})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("top_p")));
  EXPECT_THAT(DefaultSamplingParams("[1]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
  EXPECT_THAT(DefaultSamplingParams("{"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
}

}  // namespace
}  // namespace atelier
