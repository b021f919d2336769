#include "services/expert-worker/options.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/flag_names.h"
#include "libs/testing/status_matchers.h"
#include "services/expert-worker/flags.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(WorkerOptions* options, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "expert-worker");
  return WorkerFlags(options).Parse(static_cast<int>(arguments.size()), arguments.data());
}

WorkerOptions Good() {
  WorkerOptions options;
  options.model_path = "/models/m";
  return options;
}

struct BadOption {
  std::function<void(WorkerOptions&)> set;
  std::vector<std::string> message_parts;
};

TEST(WorkerOptions, DefaultsWithAModelAreValid) { ATELIER_EXPECT_OK(Good().Validate()); }

TEST(WorkerOptions, EveryBadFieldIsNamedWithItsValue) {
  using O = WorkerOptions;
  const std::vector<BadOption> bad = {
      {[](O& o) { o.model_path = ""; }, {"--model-path is required"}},
      {[](O& o) { o.shard_slice = "2/2"; }, {"--shard-slice", "2/2", "0 <= i < n"}},
      {[](O& o) { o.shard_slice = "half"; }, {"--shard-slice", "half"}},
      {[](O& o) { o.experts = "7-3"; }, {"--experts", "7-3", "a <= b"}},
      {[](O& o) { o.placement = "p.json"; }, {"--placement=p.json", "--worker"}},
      {[](O& o) { o.worker = "a"; }, {"--worker=a", "--placement, which is missing"}},
      {[](O& o) {
         o.placement = "p.json";
         o.worker = "a";
         o.experts = "0-3";
       },
       {"--placement=p.json", "neither --experts nor --shard-slice"}},
      {[](O& o) {
         o.placement = "p.json";
         o.worker = "a";
         o.shard_slice = "0/2";
       },
       {"--placement=p.json", "neither --experts nor --shard-slice"}},
      {[](O& o) { o.method = "INT8"; }, {"--method=INT8", "auto, bf16, int8, int4_g32"}},
      {[](O& o) { o.listen = {}; }, {"--listen"}},
      {[](O& o) { o.listen = {"7070"}; }, {"--listen", "\"7070\"", "port is missing"}},
      {[](O& o) { o.listen = {"unix:relative"}; }, {"--listen", "absolute"}},
      {[](O& o) {
         o.listen = {"localhost:1", "localhost:1"};
       },
       {"localhost:1 appears twice"}},
      {[](O& o) { o.listen = {"shm:/a"}; }, {"--listen=shm:/a", "--shm-listen=/a"}},
      {[](O& o) { o.security.certificate = "/c"; }, {"--tls-cert", "--tls-key is missing"}},
      {[](O& o) { o.security.private_key = "/k"; }, {"--tls-key", "--tls-cert is missing"}},
      {[](O& o) { o.security.client_ca = "/a"; }, {"--tls-client-ca=/a", "--tls-cert"}},
      {[](O& o) { o.security.token_file = "/t"; }, {"--token-file=/t", "without TLS"}},
      {[](O& o) { o.shm_listen = "relative"; }, {"--shm-listen", "absolute"}},
      {[](O& o) { o.shm_allow_uids = {"0"}; }, {"--shm-allow-uids", "without --shm-listen"}},
      {[](O& o) { o.shm_allow_uids = {"root"}; }, {"--shm-allow-uids=root", "id -u"}},
      {[](O& o) {
         o.shm_listen = "/a";
         o.shm_spin = absl::Milliseconds(11);
       },
       {"--shm-spin=11ms", "10ms"}},
      {[](O& o) {
         o.shm_listen = "/a";
         o.shm_bytes_per_client = 1;
       },
       {"--shm-bytes-per-client=1", "1048576"}},
      {[](O& o) {
         o.shm_listen = "/a";
         o.shm_max_clients = 0;
       },
       {"--shm-max-clients=0", "from 1"}},
      {[](O& o) { o.metrics_address = "here"; }, {"--metrics-address", "here"}},
      {[](O& o) { o.metrics_address = "unix:/a"; }, {"--metrics-address=unix:/a", "host:port"}},
      {[](O& o) { o.numa_node = -2; }, {"--numa-node=-2", "-1 to 1023"}},
      {[](O& o) { o.threads = -1; }, {"--threads=-1", "0 to 4096"}},
      {[](O& o) { o.cpu_isa = "neon"; }, {"--cpu-isa", "neon", "avx512"}},
      {[](O& o) { o.max_queued_calls = 0; }, {"--max-queued-calls=0", "from 1"}},
      {[](O& o) { o.max_queued_tokens = 0; }, {"--max-queued-tokens=0", "from 1"}},
      {[](O& o) { o.max_tokens_per_call = 0; }, {"--max-tokens-per-call=0", "from 1"}},
      {[](O& o) { o.max_message_bytes = 1; }, {"--max-message-bytes=1", "65536"}},
      {[](O& o) { o.max_message_bytes = int64_t{1} << 31; }, {"2147483648", "2147483647"}},
      {[](O& o) { o.default_timeout = absl::ZeroDuration(); }, {"--default-timeout=0"}},
      {[](O& o) { o.drain_timeout = -absl::Seconds(1); }, {"--drain-timeout=-1s"}},
      {[](O& o) { o.log_level = "loud"; }, {"--log-level", "loud"}},
  };
  for (const BadOption& option : bad) {
    WorkerOptions options = Good();
    option.set(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& part : option.message_parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
}

TEST(WorkerOptions, OffLoopbackNeedsInsecure) {
  for (const char* address : {"0.0.0.0:7070", "[::]:7070", "10.1.2.3:7070", "node-1:7070"}) {
    WorkerOptions options = Good();
    options.listen = {"127.0.0.1:7070", address};
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(address), HasSubstr("--insecure"))));
    options.insecure = true;
    ATELIER_EXPECT_OK(options.Validate());
    options.insecure = false;
    options.security = {"/c", "/k", "", ""};
    ATELIER_EXPECT_OK(options.Validate());
  }
}

TEST(WorkerOptions, CapabilitiesNeedNoModel) {
  WorkerOptions options;
  options.capabilities = true;
  ATELIER_EXPECT_OK(options.Validate());
}

TEST(WorkerOptions, ShardIsReadFromSliceAndExperts) {
  WorkerOptions options = Good();
  EXPECT_EQ(options.Shard(16), (ShardSpec{{}, 0, 16, 0, 1}));
  options.shard_slice = "1/3";
  options.experts = "5-15";
  EXPECT_EQ(options.Shard(16), (ShardSpec{{}, 5, 16, 1, 3}));
}

TEST(WorkerOptions, MethodsAreWhatFloatsCanBeTurnedInto) {
  WorkerOptions options = Good();
  EXPECT_EQ(options.RequestedMethod(), std::nullopt);
  for (const auto& [name, method] :
       std::vector<std::pair<const char*, Method>>{{"bf16", Method::kBF16},
                                                   {"int8", Method::kINT8},
                                                   {"int4_g32", Method::kINT4G32},
                                                   {"int4_g64", Method::kINT4G64},
                                                   {"int4_g128", Method::kINT4G128},
                                                   {"mxfp4", Method::kMXFP4},
                                                   {"q8_0", Method::kQ8_0}}) {
    options.method = name;
    ATELIER_EXPECT_OK(options.Validate());
    EXPECT_EQ(options.RequestedMethod(), method) << name;
  }
  for (const char* name : {"int4_g32_zp", "q4_k", ""}) {
    options.method = name;
    EXPECT_FALSE(options.Validate().ok()) << name;
  }
}

TEST(WorkerOptions, PopulateNeedsAStore) {
  WorkerOptions options;
  options.model_path = "/m";
  options.populate = true;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("--populate: needs --store-dir")));
  options.store_dir = "/s";
  ATELIER_EXPECT_OK(options.Validate());
}

TEST(WorkerFlags, FillEveryOption) {
  WorkerOptions o;
  ATELIER_ASSERT_OK(Parse(&o, {"--model-path=/m",
                               "--shard-slice=1/2",
                               "--experts",
                               "0-7",
                               "--placement=/p",
                               "--worker=w",
                               "--skip-experts=/e",
                               "--method=int8",
                               "--store-dir=/s",
                               "--populate",
                               "--listen=127.0.0.1:1,unix:/a",
                               "--listen=127.0.0.1:2",
                               "--shm-listen=/m.sock",
                               "--shm-allow-uids=5,6",
                               "--shm-max-clients=7",
                               "--shm-bytes-per-client=8MiB",
                               "--shm-spin=9us",
                               "--insecure",
                               "--tls-cert=/c",
                               "--tls-key=/k",
                               "--tls-client-ca=/a",
                               "--token-file=/t",
                               "--metrics-address=127.0.0.1:3",
                               "--ready-file=/r",
                               "--numa-node=1",
                               "--threads=2",
                               "--no-pin",
                               "--cpu_isa=avx2",
                               "--max-queued-calls=4",
                               "--max-queued-tokens=5",
                               "--max-tokens-per-call=6",
                               "--max-message-bytes=1MiB",
                               "--default-timeout=7s",
                               "--drain-timeout=8s",
                               "--log-level=debug",
                               "--capabilities"}));
  EXPECT_EQ(o.ToString(),
            "model_path=/m shard_slice=1/2 experts=0-7 placement=/p worker=w skip_experts=/e "
            "method=int8 store_dir=/s populate=1 "
            "listen=127.0.0.1:1,unix:/a,127.0.0.1:2 shm_listen=/m.sock shm_allow_uids=5,6 "
            "shm_max_clients=7 "
            "shm_bytes_per_client=8388608 shm_spin=9us insecure=1 "
            "tls_cert=/c tls_key=/k tls_client_ca=/a token_file=/t metrics_address=127.0.0.1:3 "
            "ready_file=/r numa_node=1 threads=2 pin_threads=0 cpu_isa=avx2 max_queued_calls=4 "
            "max_queued_tokens=5 max_tokens_per_call=6 max_message_bytes=1048576 "
            "default_timeout=7s drain_timeout=8s log_level=debug");
  EXPECT_TRUE(o.capabilities);
}

TEST(WorkerFlags, PinningCanBeNamedEitherWay) {
  for (const char* flag : {"--no-pin", "--pin-threads=false"}) {
    WorkerOptions options;
    ATELIER_ASSERT_OK(Parse(&options, {flag}));
    EXPECT_FALSE(options.pin_threads) << flag;
  }
  WorkerOptions options;
  EXPECT_THAT(Parse(&options, {"--no-pin=false"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--no-pin=false")));
}

TEST(WorkerFlags, BadValuesNameFlagValueAndWhatIsValid) {
  for (const auto& [flag, part] : std::vector<std::pair<const char*, const char*>>{
           {"--threads=many", "0 to 4096"},
           {"--numa-node=1024", "-1 to 1023"},
           {"--method=fp4", "auto, bf16, int8"},
           {"--cpu-isa=neon", "auto, scalar, avx2, avxvnni, avx512, amx"},
           {"--max-queued-calls=0", "1 to"},
           {"--max-queued-tokens=x", "1 to"},
           {"--max-tokens-per-call=-5", "1 to"},
           {"--max-message-bytes=big", "bytes"},
           {"--default-timeout=soon", "250ms"},
           {"--drain-timeout=-1s", "250ms"},
           {"--log-level=loud", "debug, info, warning, error"},
           {"--pin-threads=maybe", "true or false"},
           {"--listen=a:1,,b:2", "empty"},
           {"--listn=a:1", "did you mean --listen"}}) {
    WorkerOptions options;
    const absl::Status status = Parse(&options, {flag}).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part))) << flag;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_THAT(std::string(status.message()), HasSubstr(name)) << flag;
  }
}

// One bad value, at least, for every flag there is.
TEST(WorkerFlags, EveryBadValueIsRefusedByName) {
  const std::vector<std::string> arguments = {"--model-path=",
                                              "--shard-slice=2/2",
                                              "--experts=7-0",
                                              "--placement=",
                                              "--worker=",
                                              "--skip-experts=",
                                              "--method=fp4",
                                              "--store-dir=",
                                              "--populate=2",
                                              "--listen=127.0.0.1",
                                              "--insecure=perhaps",
                                              "--tls-cert=",
                                              "--tls-key=",
                                              "--tls-client-ca=",
                                              "--token-file=",
                                              "--metrics-address=nowhere",
                                              "--ready-file=",
                                              "--shm-listen=",
                                              "--shm-allow-uids=root",
                                              "--shm-max-clients=0",
                                              "--shm-bytes-per-client=lots",
                                              "--shm-spin=x",
                                              "--numa-node=-2",
                                              "--threads=-1",
                                              "--pin-threads=maybe",
                                              "--no-pin=false",
                                              "--cpu-isa=mmx",
                                              "--capabilities=2",
                                              "--max-tokens-per-call=0",
                                              "--max-queued-calls=0",
                                              "--max-queued-tokens=0",
                                              "--max-message-bytes=much",
                                              "--default-timeout=soon",
                                              "--drain-timeout=-1s",
                                              "--log-level=loud"};
  WorkerOptions options;
  const std::string help = WorkerFlags(&options).Help();
  testing::ExpectEveryFlagHasABadValue(
      arguments, help,
      [&](const std::string& argument) {
        options = Good();
        return Parse(&options, {argument.c_str()}).status();
      },
      [&] { return options.Validate(); });
}

TEST(WorkerFlags, HelpTeachesByExampleAndNamesEveryDefault) {
  WorkerOptions options;
  const std::string help = WorkerFlags(&options).Help();
  for (const char* part :
       {"--shard-slice=I/N", "Default: 0/1", "gpu-frontend", "Default: 127.0.0.1:7070",
        "exit status", "Default: 256 MiB", "Default: 30s", "Default: 1024", "Default: auto"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

}  // namespace
}  // namespace atelier
