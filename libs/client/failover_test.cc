// What a client with replicas does when a worker dies, freezes, drains or lies, over each
// transport.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/client_fixture.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using testing::ClientTest;
using ::testing::HasSubstr;
using testing::kLayers;
using testing::ServedWorker;
using testing::StatusIs;
using testing::With;

// Two slices with two replicas each. Each slice scales its sums, so that they depend on the order
// in which they are added.
class FailoverTest : public ClientTest, public ::testing::WithParamInterface<std::string> {
 protected:
  FailoverTest() {
    options_.call_timeout = absl::Minutes(5);
    // Only what a test means to be late is late.
    options_.failover.first_patience = options_.failover.min_patience = absl::Minutes(1);
    options_.failover.min_stall = options_.failover.longest_silence = absl::Minutes(2);
    for (int i = 0; i < 4; ++i) {
      workers_.push_back(
          std::make_unique<ServedWorker>(With({{kLayers, 0, 8, i % 2, 2}}), Address(i)));
      Scale(i);
    }
  }

  std::string Address(int worker) {
    if (GetParam() == "tcp") return "127.0.0.1:0";
    return absl::StrCat(GetParam(), ":", dir_.File(absl::StrCat(worker, ".sock")));
  }
  void Scale(int worker) {
    const float scale = worker % 2 == 0 ? -977.3f : 1.0f / 3.0f;
    workers_[static_cast<size_t>(worker)]->worker.SetTamper(
        [scale](ForwardReply& reply) { Multiply(reply, scale); });
  }
  static void Multiply(ForwardReply& reply, float scale) {
    for (ShardSum& sum : reply.sums) {
      auto* values = reinterpret_cast<float*>(sum.data.data());
      for (size_t i = 0; i < sum.data.size() / sizeof(float); ++i) values[i] *= scale;
    }
  }
  ServedWorker& served(size_t worker) { return *workers_[worker]; }
  testing::FakeWorker& fake(size_t worker) { return workers_[worker]->worker; }

  // All four connected.
  std::unique_ptr<ExpertClient> ConnectAll() {
    std::vector<std::string> addresses;
    for (const auto& worker : workers_) addresses.push_back(worker->address());
    auto client = Connect(addresses);
    EXPECT_THAT(client, testing::IsOk());
    EXPECT_TRUE(Connected(**client, 4));
    return *std::move(client);
  }
  // Whether so many workers are connected within half a minute.
  static bool Connected(const ExpertClient& client, int count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      int connected = 0;
      for (const WorkerInfo& info : client.Workers()) connected += info.connected ? 1 : 0;
      if (connected == count) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  // What every layer answers while nothing is wrong.
  std::vector<std::vector<float>> AllLayers(ExpertClient& client) {
    std::vector<std::vector<float>> all;
    for (const int layer : kLayers) {
      EXPECT_THAT(Run(client, layer, &all.emplace_back()), testing::IsOk());
    }
    return all;
  }
  double Failovers() {
    double total = 0;
    for (const auto& worker : workers_) total += metrics_.Failovers(worker->address()).Value();
    return total;
  }
  double Hedges() {
    double total = 0;
    for (const auto& worker : workers_) total += metrics_.Hedges(worker->address()).Value();
    return total;
  }

  std::vector<std::unique_ptr<ServedWorker>> workers_;
};

INSTANTIATE_TEST_SUITE_P(Transports, FailoverTest, ::testing::Values("tcp", "unix", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(FailoverTest, ACallOutlivesTheWorkersThatItWasSentTo) {
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  // The first two hold everything, the others nothing more: whoever is asked among them dies.
  for (const int layer : kLayers) {
    SCOPED_TRACE(layer);
    for (const size_t victim : {size_t{0}, size_t{1}}) fake(victim).Hold();
    ATELIER_ASSERT_OK_AND_ASSIGN(const auto pending, client->Forward(call_.For(layer)));
    for (const size_t victim : {size_t{0}, size_t{1}}) served(victim).Kill();
    std::vector<float> sums(3 * 16);
    ATELIER_ASSERT_OK(pending->Wait(sums.data()));
    EXPECT_EQ(sums, whole[static_cast<size_t>(layer)]);
    // While they are dead, and after their return.
    EXPECT_EQ(AllLayers(*client), whole);
    ATELIER_EXPECT_OK(client->Ready());
    for (const size_t victim : {size_t{0}, size_t{1}}) {
      fake(victim).Release();
      served(victim).Start();
    }
    ASSERT_TRUE(Connected(*client, 4));
    EXPECT_EQ(AllLayers(*client), whole);
  }
  EXPECT_GE(Failovers(), 1);
}

TEST_P(FailoverTest, AWorkerThatReturnsIsUsedAgain) {
  const auto client = ConnectAll();
  served(0).Kill();
  ASSERT_TRUE(Connected(*client, 3));
  EXPECT_EQ(metrics_.LiveReplicas("layers 0-3, experts 0-7, slice 0/2").Value(), 1);
  AllLayers(*client);
  served(0).Start();
  ASSERT_TRUE(Connected(*client, 4));
  EXPECT_EQ(metrics_.LiveReplicas("layers 0-3, experts 0-7, slice 0/2").Value(), 2);
  const int before = fake(0).calls();
  AllLayers(*client);
  EXPECT_GT(fake(0).calls(), before);
}

TEST_P(FailoverTest, WithoutAnyReplicaTheCallNamesThoseThatAreGone) {
  options_.failover.reconnect_grace = absl::Milliseconds(20);
  const auto client = ConnectAll();
  served(0).Kill();
  served(2).Kill();
  ASSERT_TRUE(Connected(*client, 2));
  std::vector<float> sums;
  const auto names = AllOf(HasSubstr(served(0).address()), HasSubstr(served(2).address()));
  EXPECT_THAT(Run(*client, 1, &sums), StatusIs(absl::StatusCode::kUnavailable, names));
  EXPECT_THAT(client->Ready(), StatusIs(absl::StatusCode::kUnavailable, names));
}

TEST_P(FailoverTest, ACallWaitsForAReplicaThatReturns) {
  options_.failover.reconnect_grace = absl::Minutes(1);
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  served(0).Kill();
  served(2).Kill();
  ASSERT_TRUE(Connected(*client, 2));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto pending, client->Forward(call_.For(1)));
  served(2).Start();
  std::vector<float> sums(3 * 16);
  ATELIER_ASSERT_OK(pending->Wait(sums.data()));
  EXPECT_EQ(sums, whole[1]);
}

TEST_P(FailoverTest, ADrainingWorkerIsLeftAndItsCallsInFlightFinish) {
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  fake(0).Hold();
  fake(2).Hold();
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto pending, client->Forward(call_.For(1)));
  const size_t asked = fake(0).calls() > fake(2).calls() ? 0 : 2;
  fake(0).Release();
  fake(2).Release();
  std::vector<float> sums(3 * 16);
  ATELIER_ASSERT_OK(pending->Wait(sums.data()));
  EXPECT_EQ(sums, whole[1]);
  ATELIER_ASSERT_OK(fake(asked).Drain(absl::Now()));
  // The first calls are refused and go elsewhere; the rest is not sent to it at all.
  EXPECT_EQ(AllLayers(*client), whole);
  ASSERT_TRUE(Connected(*client, 3));
  const int calls = fake(asked).calls();
  EXPECT_EQ(AllLayers(*client), whole);
  EXPECT_EQ(fake(asked).calls(), calls);
}

TEST_P(FailoverTest, ANaNThatTheRowsDoNotExplainIsAskedOfAnotherReplica) {
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  fake(0).SetTamper(
      [](ForwardReply& reply) { Multiply(reply, std::numeric_limits<float>::quiet_NaN()); });
  EXPECT_EQ(AllLayers(*client), whole);
  EXPECT_GE(metrics_.NotFinite(served(0).address()).Value(), 1);
  EXPECT_EQ(metrics_.NotFinite(served(2).address()).Value(), 0);
}

TEST_P(FailoverTest, ANaNThatEveryReplicaGivesIsTheAnswer) {
  const auto client = ConnectAll();
  call_.rows[5] = ToBFloat16(std::numeric_limits<float>::infinity());
  std::vector<float> sums;
  ATELIER_ASSERT_OK(Run(*client, 1, &sums));
  EXPECT_FALSE(std::isfinite(sums[5]));
  EXPECT_TRUE(std::isfinite(sums[16 + 5]));
  for (const auto& worker : workers_) {
    EXPECT_EQ(metrics_.NotFinite(worker->address()).Value(), 0);
  }
}

TEST_P(FailoverTest, ALateWorkerIsOvertakenAndItsLateAnswerDropped) {
  options_.failover.first_patience = options_.failover.min_patience = absl::Milliseconds(20);
  options_.failover.hedge_budget = 1;
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  for (const size_t frozen : {size_t{0}, size_t{3}}) fake(frozen).Hold();
  for (const int layer : kLayers) {
    std::vector<float> sums;
    ATELIER_ASSERT_OK(Run(*client, layer, &sums));
    EXPECT_EQ(sums, whole[static_cast<size_t>(layer)]);
  }
  EXPECT_GE(Hedges(), 1);
  // What they answer to calls that are over changes no later one.
  for (const size_t frozen : {size_t{0}, size_t{3}}) {
    fake(frozen).SetTamper([](ForwardReply& reply) { Multiply(reply, 7.0f); });
    fake(frozen).Release();
    Scale(static_cast<int>(frozen));
  }
  EXPECT_EQ(AllLayers(*client), whole);
}

TEST_P(FailoverTest, AFrozenWorkerIsLeftOutUntilItAnswersAProbe) {
  options_.failover.first_patience = options_.failover.min_patience = absl::Milliseconds(5);
  options_.failover.min_stall = absl::Milliseconds(25);
  options_.failover.hedge_budget = 0;  // a stall needs none
  options_.failover.first_ejection = absl::Milliseconds(50);
  const auto client = ConnectAll();
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  fake(0).Hold();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(AllLayers(*client), whole);
  EXPECT_EQ(metrics_.Ejected(served(0).address()).Value(), 1);
  EXPECT_GE(metrics_.Ejections(served(0).address()).Value(), 1);
  fake(0).Release();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (metrics_.Ejected(served(0).address()).Value() != 0 && absl::Now() < deadline) {
    EXPECT_EQ(AllLayers(*client), whole);
  }
  EXPECT_EQ(metrics_.Ejected(served(0).address()).Value(), 0);
}

TEST_P(FailoverTest, StartsWithoutAReplicaThatIsAwayAndTakesItInWhenItComes) {
  served(0).Kill();
  std::vector<std::string> addresses;
  for (const auto& worker : workers_) addresses.push_back(worker->address());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect(addresses));
  ATELIER_EXPECT_OK(client->Ready());
  const std::vector<std::vector<float>> whole = AllLayers(*client);
  served(0).Start();
  ASSERT_TRUE(Connected(*client, 4));
  served(2).Kill();
  ASSERT_TRUE(Connected(*client, 3));
  EXPECT_EQ(AllLayers(*client), whole);
}

TEST_P(FailoverTest, AReplicaOfAnotherModelThatComesLaterIsRefused) {
  served(0).Kill();
  std::vector<std::string> addresses;
  for (const auto& worker : workers_) addresses.push_back(worker->address());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto client, Connect(addresses));
  WorkerDescription other = With({{kLayers, 0, 8, 0, 2}});
  other.model_digest = "another";
  fake(0).SetDescription(other);
  served(0).Start();
  served(2).Kill();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (absl::Now() < deadline && !absl::StrContains(client->Ready().message(), "digest")) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(client->Ready(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("does not fit the others"), HasSubstr("another"))));
  EXPECT_EQ(fake(0).calls(), 0);
}

}  // namespace
}  // namespace atelier
