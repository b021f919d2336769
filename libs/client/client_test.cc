#include "libs/client/client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/client_fixture.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using testing::ClientTest;
using testing::FakeDescription;
using ::testing::HasSubstr;
using testing::kLayers;
using testing::ServedWorker;
using testing::StatusIs;
using testing::With;

TEST_F(ClientTest, AddsTheSlicesOfTwoTransports) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  ServedWorker b(With({{kLayers, 0, 8, 1, 2}}), "unix:" + dir_.File("b.sock"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({b.address(), a.address()}));
  std::vector<float> sums;
  for (int layer : kLayers) {
    ATELIER_ASSERT_OK(Run(*client, layer, &sums));
    EXPECT_EQ(sums, call_.Expected(layer));
  }
  ATELIER_EXPECT_OK(client->Ready());
  EXPECT_TRUE(client->Workers().at(0).connected);
}

TEST_F(ClientTest, SendsOnlyTheRowsThatHaveAnExpertThere) {
  ServedWorker low(With({{kLayers, 0, 4, 0, 1}}), "127.0.0.1:0");
  ServedWorker high(With({{kLayers, 4, 8, 0, 1}}), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({low.address(), high.address()}));
  std::vector<float> sums;
  ATELIER_ASSERT_OK(Run(*client, 2, &sums));
  EXPECT_EQ(sums, call_.Expected(2));
  EXPECT_EQ(low.worker.tokens(), 2);   // tokens 0 and 2
  EXPECT_EQ(high.worker.tokens(), 2);  // tokens 0 and 1
}

TEST_F(ClientTest, SumsHaveTheSameBitsWhateverTheOrderOfAddresses) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 3}}), "127.0.0.1:0");
  ServedWorker b(With({{kLayers, 0, 8, 1, 3}}), "127.0.0.1:0");
  ServedWorker c(With({{kLayers, 0, 8, 2, 3}}), "127.0.0.1:0");
  // Sums that depend on the order of their terms.
  float scale = 1.0f;
  for (ServedWorker* worker : {&a, &b, &c}) {
    scale *= -977.3f;
    worker->worker.SetTamper([scale](ForwardReply& reply) {
      float* values = reinterpret_cast<float*>(reply.sums[0].data.data());
      for (int i = 0; i < 3 * 16; ++i) values[i] *= scale;
    });
  }
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto one, Connect({a.address(), b.address(), c.address()}));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto two, Connect({c.address(), a.address(), b.address()}));
  std::vector<float> first, second;
  ATELIER_ASSERT_OK(Run(*one, 1, &first));
  ATELIER_ASSERT_OK(Run(*two, 1, &second));
  EXPECT_EQ(first, second);
}

TEST_F(ClientTest, MetricsTellOfCallsErrorsAndReconnects) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  std::vector<float> sums;
  ATELIER_ASSERT_OK(Run(*client, 1, &sums));
  EXPECT_EQ(metrics_.CallSeconds(a.address()).Collect().histogram.sample_count, 1u);
  EXPECT_EQ(metrics_.Connected(a.address()).Value(), 1);
  EXPECT_EQ(metrics_.Reconnects(a.address()).Value(), 0);
  a.worker.SetTamper([](ForwardReply& reply) { reply.sums.clear(); });
  EXPECT_THAT(Run(*client, 1, &sums), StatusIs(absl::StatusCode::kInternal, ::testing::_));
  EXPECT_EQ(metrics_.CallErrors(a.address(), "INTERNAL").Value(), 1);
  a.worker.SetTamper(nullptr);
  a.Kill();
  EXPECT_TRUE(EndsReady(*client, false));
  EXPECT_EQ(metrics_.Connected(a.address()).Value(), 0);
  a.Start();
  EXPECT_TRUE(EndsReady(*client, true));
  EXPECT_EQ(metrics_.Reconnects(a.address()).Value(), 1);
}

TEST_F(ClientTest, RowsWithoutAnyExpertAreZero) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  call_.ids = {-1, -1, -1, -1, -1, -1};
  std::vector<float> sums;
  ATELIER_ASSERT_OK(Run(*client, 0, &sums));
  EXPECT_EQ(sums, std::vector<float>(3 * 16, 0.0f));
  EXPECT_EQ(a.worker.calls(), 0);
}

TEST_F(ClientTest, RefusesCallsThatDoNotFitTheModel) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  EXPECT_THAT(client->Forward(call_.For(9)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer=9")));
  ForwardCall narrow = call_.For(1);
  narrow.batch.hidden_size = 8;
  EXPECT_THAT(client->Forward(narrow),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hidden_size=8")));
  call_.ids[3] = 8;
  EXPECT_THAT(client->Forward(call_.For(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8")));
}

TEST_F(ClientTest, ConnectNamesWorkersThatDoNotAnswer) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  options_.connect_timeout = absl::Milliseconds(300);
  const std::string nobody = "unix:" + dir_.File("nobody.sock");
  EXPECT_THAT(
      Connect({a.address(), nobody}),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr(nobody), HasSubstr("layers 0-3, experts 0-7: no worker holds "
                                                  "slice 1/2"))));
}

TEST_F(ClientTest, ConnectSaysWhatIsNotCovered) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  EXPECT_THAT(Connect({a.address()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("layers 0-3, experts 0-7: no worker holds slice 1/2")));
  options_.model_digest = "another";
  EXPECT_THAT(Connect({a.address()}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("model digest d1")));
}

TEST_F(ClientTest, AKilledWorkerFailsItsCallsAtOnceAndIsUsedAgainWhenItIsBack) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  ServedWorker b(With({{kLayers, 0, 8, 1, 2}}), "unix:" + dir_.File("b.sock"));
  options_.call_timeout = absl::Minutes(5);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address(), b.address()}));
  b.worker.Hold();
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto pending, client->Forward(call_.For(1)));
  ASSERT_TRUE(b.worker.AwaitCalls(1));
  b.Kill();
  std::vector<float> sums(3 * 16);
  EXPECT_THAT(pending->Wait(sums.data()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(b.address())));
  EXPECT_THAT(Run(*client, 1, &sums),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("b.sock")));
  b.worker.Release();
  b.Start();
  EXPECT_TRUE(RunsWithin(*client, absl::Seconds(30)));
  ATELIER_ASSERT_OK(Run(*client, 1, &sums));
  EXPECT_EQ(sums, call_.Expected(1));
}

TEST_F(ClientTest, PartsMoveToOtherWorkersWhileTheyServe) {
  const ShardSpec low{kLayers, 0, 4, 0, 1}, high{kLayers, 4, 8, 0, 1};
  ServedWorker a(With({low}), "127.0.0.1:0");
  ServedWorker b(With({high}), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address(), b.address()}));
  const auto now_holds = [&](ServedWorker& worker, size_t index, std::vector<ShardSpec> shards,
                             absl::string_view text) {
    WorkerDescription description = With(std::move(shards));
    description.epoch = worker.worker.Describe().epoch + 1;
    worker.worker.SetDescription(description);
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline && client->Workers()[index].shards != text) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_EQ(client->Workers()[index].shards, text);
  };
  now_holds(b, 1, {high, low},
            "layers 0-3, experts 4-7, slice 0/1; layers 0-3, experts 0-3, slice 0/1");
  now_holds(a, 0, {{{2}, 0, 4, 0, 1}}, "layers 2, experts 0-3, slice 0/1");
  // The indexes of b's shards have changed, too.
  now_holds(b, 1, {low, high},
            "layers 0-3, experts 0-3, slice 0/1; layers 0-3, experts 4-7, slice 0/1");
  const int before = a.worker.calls();
  std::vector<float> sums;
  for (const int layer : {0, 1, 3}) {
    ATELIER_ASSERT_OK(Run(*client, layer, &sums));
    EXPECT_EQ(sums, call_.Expected(layer));
  }
  EXPECT_EQ(a.worker.calls(), before);
  a.Kill();
  ATELIER_ASSERT_OK(Run(*client, 2, &sums));
  EXPECT_EQ(sums, call_.Expected(2));
}

TEST_F(ClientTest, APartThatWouldBeCutOtherwiseIsRefused) {
  ServedWorker a(With({{kLayers, 0, 4, 0, 1}, {kLayers, 4, 8, 0, 1}}), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  WorkerDescription whole = With({{kLayers, 0, 8, 0, 1}});
  whole.epoch = 2;
  a.worker.SetDescription(whole);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline && client->Ready().ok()) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_THAT(client->Ready(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("came back changed: shards were layers 0-3, "
                                       "experts 0-3"),
                             HasSubstr("divided otherwise than before"))));
}

TEST_F(ClientTest, AWorkerThatComesBackWithAnotherModelIsNotUsed) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  a.Kill();
  WorkerDescription other = FakeDescription();
  other.hidden_size = 32;
  options_.hidden_size = 16;
  other.shards = {ShardSpec{{0, 1}, 0, 8, 0, 2}};
  a.worker.SetDescription(other);
  a.Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline && !absl::StrContains(client->Ready().message(), "changed")) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(client->Ready(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("came back changed")));
  std::vector<float> sums;
  EXPECT_FALSE(Run(*client, 1, &sums).ok());
  EXPECT_EQ(a.worker.calls(), 0);
}

TEST_F(ClientTest, AWorkerThatComesBackWithAnotherMethodIsNotUsed) {
  WorkerDescription precise = FakeDescription();
  precise.method = "bf16";
  ServedWorker a(precise, "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  a.Kill();
  precise.method = "int8";
  a.worker.SetDescription(precise);
  a.Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline && !absl::StrContains(client->Ready().message(), "method")) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(client->Ready(),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("method was bf16, is int8"),
                                                             HasSubstr("restart it as it was"))));
}

TEST_F(ClientTest, MixedMethodsAreServedWithAWarning) {
  WorkerDescription low = With({{kLayers, 0, 4, 0, 1}});
  WorkerDescription high = With({{kLayers, 4, 8, 0, 1}});
  low.method = "bf16";
  high.method = "int8";
  ServedWorker a(low, "127.0.0.1:0");
  ServedWorker b(high, "127.0.0.1:0");
  absl::Mutex mutex;
  std::vector<std::string> warnings;
  const Logger logger(Severity::kWarning, [&](absl::string_view line) {
    absl::MutexLock lock(&mutex);
    warnings.emplace_back(line);
  });
  options_.workers = {a.address(), b.address()};
  ATELIER_ASSERT_OK(ExpertClient::Connect(options_, clock_, logger, &metrics_));
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(warnings, ::testing::Contains(AllOf(HasSubstr("mixed_methods"),
                                                  HasSubstr(a.address() + " bf16"),
                                                  HasSubstr(b.address() + " int8"))));
}

TEST_F(ClientTest, ALostWorkerIsNamedWithWhatIsMissing) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  ServedWorker b(With({{kLayers, 0, 8, 1, 2}}), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address(), b.address()}));
  b.Kill();
  EXPECT_TRUE(EndsReady(*client, false));
  const auto names = AllOf(HasSubstr(b.address()), HasSubstr("slice 1/2"));
  EXPECT_THAT(client->Ready(), StatusIs(absl::StatusCode::kUnavailable, names));
  std::vector<float> sums;
  EXPECT_THAT(Run(*client, 1, &sums), StatusIs(absl::StatusCode::kUnavailable, names));
}

TEST_F(ClientTest, AWorkerThatComesBackWithAnotherSliceIsNotUsed) {
  ServedWorker a(With({{kLayers, 0, 8, 0, 2}}), "127.0.0.1:0");
  ServedWorker b(With({{kLayers, 0, 8, 1, 2}}), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address(), b.address()}));
  for (ServedWorker* worker : {&a, &b}) {
    worker->Kill();
    worker->worker.SetDescription(With({{kLayers, 0, 8, worker == &a ? 1 : 0, 2}}));
    worker->Start();
  }
  // They fit together, but not as the frontend knows them: it keeps waiting for the old ones.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline && !absl::StrContains(client->Ready().message(), "slice")) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(client->Ready(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("slice")));
  std::vector<float> sums;
  EXPECT_FALSE(Run(*client, 1, &sums).ok());
}

TEST_F(ClientTest, AFrozenWorkerEndsTheCallAtItsDeadline) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  options_.call_timeout = absl::Milliseconds(100);
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  a.worker.Hold();
  std::vector<float> sums;
  EXPECT_THAT(Run(*client, 1, &sums),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(a.address())));
  a.worker.Release();
}

TEST_F(ClientTest, AnAbandonedCallIsCancelledAtTheWorker) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect({a.address()}));
  a.worker.Hold();
  {
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto pending, client->Forward(call_.For(1)));
    ASSERT_TRUE(a.worker.AwaitCalls(1));
  }
  EXPECT_TRUE(a.worker.AwaitCancelled());
}

TEST_F(ClientTest, TwoClientsShareAWorker) {
  ServedWorker a(FakeDescription(), "127.0.0.1:0");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto one, Connect({a.address()}));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto two, Connect({a.address()}));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto first, one->Forward(call_.For(1)));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto second, two->Forward(call_.For(2)));
  std::vector<float> sums(3 * 16);
  ATELIER_ASSERT_OK(second->Wait(sums.data()));
  EXPECT_EQ(sums, call_.Expected(2));
  ATELIER_ASSERT_OK(first->Wait(sums.data()));
  EXPECT_EQ(sums, call_.Expected(1));
}

TEST_F(ClientTest, BadOptionsAreNamed) {
  EXPECT_THAT(Connect({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("workers")));
  EXPECT_THAT(Connect({"a:1", "a:1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a:1 is named twice")));
  options_.call_timeout = absl::ZeroDuration();
  EXPECT_THAT(Connect({"a:1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("call_timeout=0")));
}

}  // namespace
}  // namespace atelier
