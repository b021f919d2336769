#include "services/gpu-frontend/options.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/flag_names.h"
#include "libs/testing/status_matchers.h"
#include "services/gpu-frontend/flags.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FrontendOptions Good() {
  FrontendOptions options;
  options.model_path = "/models/m";
  options.workers = {"127.0.0.1:7070", "unix:/run/w.sock"};
  return options;
}

absl::StatusOr<CommandLine> Parse(FrontendOptions* options, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gpu-frontend");
  return FrontendFlags(options).Parse(static_cast<int>(arguments.size()), arguments.data());
}

void ExpectInvalid(const FrontendOptions& options, const std::string& part) {
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part)));
}

TEST(FrontendOptions, DefaultsWithModelAndWorkersAreValid) { ATELIER_EXPECT_OK(Good().Validate()); }

TEST(FrontendOptions, NamesWhatIsRequired) {
  FrontendOptions options = Good();
  options.model_path.clear();
  ExpectInvalid(options, "--model-path is required");
  options = Good();
  options.workers.clear();
  ExpectInvalid(options, "--workers is required");
}

TEST(FrontendOptions, RefusesBadAddresses) {
  FrontendOptions options = Good();
  options.workers = {"127.0.0.1"};
  ExpectInvalid(options, "--workers");
  options.workers = {"127.0.0.1:0"};
  ExpectInvalid(options, "port 0");
  options.workers = {"127.0.0.1:1", "127.0.0.1:1"};
  ExpectInvalid(options, "127.0.0.1:1 appears twice");
  options = Good();
  options.metrics_address = "nowhere";
  ExpectInvalid(options, "--metrics-address");
  options = Good();
}

TEST(FrontendOptions, SaysWhatIsWrongWithAHost) {
  const auto refuses = [](const std::string& host, const std::string& why) {
    FrontendOptions options = Good();
    options.host = host;
    options.insecure = true;
    ExpectInvalid(options, why);
  };
  refuses("", "--host=\"\": give an address");
  refuses("127.0.0.1:5", "--host=127.0.0.1:5: is no IPv6 address; the port goes into --port");
  refuses("[::1]", "--host=[::1]: give an IPv6 address without brackets");
  refuses("unix:/run/f.sock", "over TCP only");
  refuses("a b", "is no name or IP address");
}

TEST(FrontendOptions, MetricsNeedTcp) {
  FrontendOptions options = Good();
  options.metrics_address = "unix:/run/m.sock";
  ExpectInvalid(options, "--metrics-address=unix:/run/m.sock: Prometheus and probes need");
}

TEST(FrontendOptions, OffLoopbackNeedsInsecure) {
  for (const char* host : {"0.0.0.0", "::", "192.168.1.7", "example.org"}) {
    FrontendOptions options = Good();
    options.host = host;
    ExpectInvalid(options, "--insecure");
    options.insecure = true;
    ATELIER_EXPECT_OK(options.Validate());
  }
  for (const char* host : {"127.0.0.1", "127.8.8.8", "::1", "localhost"}) {
    FrontendOptions options = Good();
    options.host = host;
    ATELIER_EXPECT_OK(options.Validate());
  }
}

TEST(FrontendOptions, WorkersOnOtherMachinesNeedTlsOrInsecure) {
  FrontendOptions options = Good();
  options.workers = {"127.0.0.1:7070", "worker-0:7070"};
  ExpectInvalid(options, "--workers: worker-0:7070: is on another machine, in plaintext");
  options.insecure = true;
  ATELIER_EXPECT_OK(options.Validate());
  options.insecure = false;
  options.worker_security.ca = "/ca";
  ATELIER_EXPECT_OK(options.Validate());
  options.worker_security.certificate = "/c";
  ExpectInvalid(options, "--worker-tls-key is missing");
  options.worker_security = {"", "/c", "/k", "", ""};
  ExpectInvalid(options, "--worker-tls-cert=/c: means nothing without TLS");
  options.worker_security = {"", "", "", "worker-0", ""};
  ExpectInvalid(options, "--worker-tls-server-name=worker-0: means nothing without TLS");
  options.worker_security = {"", "", "", "", "/t"};
  ExpectInvalid(options, "--worker-token-file=/t: means nothing without TLS");
}

TEST(FrontendOptions, CudaIsRefusedClearly) {
  FrontendOptions options = Good();
  options.device = "cuda";
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--device=cuda")));
}

TEST(FrontendOptions, RefusesSizesThatCannotWork) {
  FrontendOptions options = Good();
  options.kv_cache_bytes = 0;
  ExpectInvalid(options, "--kv-cache-bytes");
  options = Good();
  options.worker_timeout = absl::ZeroDuration();
  ExpectInvalid(options, "--worker-timeout");
  options = Good();
  options.connect_timeout = absl::ZeroDuration();
  ExpectInvalid(options, "--connect-timeout");
  options = Good();
  options.max_total_tokens = 15;
  ExpectInvalid(options, "--max-total-tokens=15");
}

TEST(FrontendOptions, ResolvesPathsAndNames) {
  FrontendOptions options = Good();
  options.model_path = "models/../models/tiny/";
  ATELIER_ASSERT_OK(options.Resolve());
  EXPECT_EQ(options.model_path, (std::filesystem::current_path() / "models/tiny").string());
  EXPECT_EQ(options.tokenizer_path, options.model_path);
  EXPECT_EQ(options.served_model_name, "tiny");
}

TEST(FrontendOptions, ListenAddressBracketsIPv6) {
  FrontendOptions options = Good();
  options.host = "::1";
  EXPECT_EQ(options.ListenAddress(), "[::1]:20000");
}

TEST(FrontendFlags, FillTheOptions) {
  FrontendOptions options;
  ATELIER_ASSERT_OK(
      Parse(&options, {"--model-path=/m", "--workers=a:1,unix:/b", "--worker-tls-ca=/ca",
                       "--port=0", "--kv-cache-bytes=64MiB", "--worker-timeout=2s",
                       "--disable-prefix-cache", "--max_running_requests", "3"}));
  EXPECT_EQ(options.model_path, "/m");
  EXPECT_THAT(options.workers, ElementsAre("a:1", "unix:/b"));
  EXPECT_EQ(options.port, 0);
  EXPECT_EQ(options.kv_cache_bytes, 64 << 20);
  EXPECT_EQ(options.worker_timeout, absl::Seconds(2));
  EXPECT_TRUE(options.disable_prefix_cache);
  EXPECT_EQ(options.max_running_requests, 3);
}

// One bad value, at least, for every flag there is.
TEST(FrontendFlags, EveryBadValueIsRefusedByName) {
  const std::vector<std::string> arguments = {"--model-path=",
                                              "--served-model-name=",
                                              "--tokenizer-path=",
                                              "--advertised-path=",
                                              "--context-length=-1",
                                              "--host=a b",
                                              "--port=-1",
                                              "--port=65536",
                                              "--insecure=perhaps",
                                              "--metrics-address=nowhere",
                                              "--ready-file=",
                                              "--workers=127.0.0.1",
                                              "--workers=a:1,",
                                              "--worker-timeout=soon",
                                              "--worker-tls-ca=",
                                              "--worker-tls-cert=",
                                              "--worker-tls-key=",
                                              "--worker-tls-server-name=",
                                              "--worker-token-file=",
                                              "--connect-timeout=-1s",
                                              "--hedge-percent=101",
                                              "--replica-grace=-1s",
                                              "--device-experts=",
                                              "--device=tpu",
                                              "--device=cuda",
                                              "--threads=-1",
                                              "--cpu-isa=mmx",
                                              "--max-running-requests=0",
                                              "--max-queued-requests=0",
                                              "--kv-cache-bytes=much",
                                              "--max-total-tokens=-1",
                                              "--page-size=0",
                                              "--chunked-prefill-size=0",
                                              "--max-step-time=x",
                                              "--disable-prefix-cache=2",
                                              "--stream-interval=0",
                                              "--random-seed=-2",
                                              "--drain-timeout=x",
                                              "--log-level=loud"};
  FrontendOptions options;
  const std::string help = FrontendFlags(&options).Help();
  testing::ExpectEveryFlagHasABadValue(
      arguments, help,
      [&](const std::string& argument) {
        options = Good();
        return Parse(&options, {argument.c_str()}).status();
      },
      [&] { return options.Validate(); });
}

TEST(FrontendFlags, HelpNamesEveryFlagOnce) {
  FrontendOptions options;
  const std::string help = FrontendFlags(&options).Help();
  for (const char* flag : {"--model-path=", "--workers=", "--kv-cache-bytes=", "--version"}) {
    const size_t first = help.find(std::string("  ") + flag);
    ASSERT_NE(first, std::string::npos) << flag;
    EXPECT_EQ(help.find(std::string("\n  ") + flag, first), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace atelier
