#include "libs/metrics/observability_server.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/metrics/metrics.h"
#include "libs/testing/child_process.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ObservabilityServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ATELIER_ASSERT_OK_AND_ASSIGN(server_, ObservabilityServer::Start(Options("127.0.0.1:0")));
  }

  ObservabilityOptions Options(const std::string& address) {
    ObservabilityOptions options;
    options.listen = *ParseEndpoint(address);
    options.metrics = &registry_;
    options.ready = [this] {
      absl::MutexLock lock(&mutex_);
      return ready_;
    };
    return options;
  }

  void SetReady(absl::Status ready) {
    absl::MutexLock lock(&mutex_);
    ready_ = std::move(ready);
  }

  std::string Get(const std::string& path) {
    return testing::HttpGet(server_->endpoint().port, path);
  }

  prometheus::Registry registry_;
  WorkerMetrics metrics_{registry_};
  absl::Mutex mutex_;
  absl::Status ready_ = absl::UnavailableError("loading layer 3 of 29");
  std::unique_ptr<ObservabilityServer> server_;
};

TEST_F(ObservabilityServerTest, ServesMetricsAsPrometheusText) {
  metrics_.tokens.Increment(42);
  metrics_.CallsWith("OK").Increment();
  EXPECT_THAT(Get("/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("text/plain; version=0.0.4"),
                    HasSubstr("\natelier_worker_tokens_total 42\n"),
                    HasSubstr("\natelier_worker_calls_total{code=\"OK\"} 1\n"),
                    HasSubstr("# TYPE atelier_worker_queue_seconds histogram")));
}

TEST_F(ObservabilityServerTest, IsAliveBeforeItIsReady) {
  for (const char* path : {"/healthz", "/health"}) {
    EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  }
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"),
                                    EndsWith("not ready: loading layer 3 of 29\n")));
  SetReady(absl::OkStatus());
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("ready\n")));
  SetReady(absl::UnavailableError("draining"));
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(ObservabilityServerTest, RefusesOtherPathsAndMethods) {
  for (const char* path : {"/", "/metrics/", "/metricsx", "/../etc/passwd", "/healthz/a"}) {
    EXPECT_THAT(Get(path), Not(HasSubstr(" 200 "))) << path;
  }
  EXPECT_THAT(Get("/other"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("/readyz")));
  const int port = server_->endpoint().port;
  EXPECT_THAT(testing::ExchangeWithPort(
                  port, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(
      testing::ExchangeWithPort(port, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Length: 3"), EndsWith("\r\n\r\n")));
}

TEST_F(ObservabilityServerTest, AnswersManyAtOnce) {
  std::vector<std::thread> clients;
  std::vector<std::string> answers(16);
  for (std::string& answer : answers) {
    clients.emplace_back([&] { answer = Get("/metrics"); });
  }
  for (int i = 0; i < 1000; ++i) metrics_.queue_seconds.Observe(0.001 * i);
  for (std::thread& client : clients) client.join();
  for (const std::string& answer : answers) EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
}

TEST_F(ObservabilityServerTest, NamesTheAddressThatCannotBeBound) {
  const std::string taken = server_->endpoint().ToString();
  EXPECT_THAT(ObservabilityServer::Start(Options(taken)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(taken)));
  EXPECT_THAT(ObservabilityServer::Start(Options("192.0.2.1:0")),  // TEST-NET: nobody's interface
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1:0")));
  EXPECT_THAT(ObservabilityServer::Start(Options("unix:/tmp/x")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unix:/tmp/x")));
}

TEST_F(ObservabilityServerTest, ServesIpv6OrSaysThatItCannot) {
  const auto server = ObservabilityServer::Start(Options("[::1]:0"));
  if (server.ok()) {
    EXPECT_THAT((*server)->endpoint().ToString(), AllOf(StartsWith("[::1]:"), Not(EndsWith(":0"))));
  } else {
    EXPECT_THAT(server.status().ToString(), HasSubstr("[::1]:0"));
  }
}

}  // namespace
}  // namespace atelier
