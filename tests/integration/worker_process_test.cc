#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/base/endpoint.h"
#include "libs/model/placement_file.h"
#include "libs/testing/child_process.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "tests/integration/worker_client.h"

// The real expert-worker binary, as a user starts it.

namespace atelier {
namespace {

using ::atelier::testing::ChildProcess;
using ::atelier::testing::HttpGet;
using ::atelier::testing::kTinyHidden;
using ::atelier::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WorkerProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(model_->path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 11});
  }
  static void TearDownTestSuite() { model_.reset(); }

  // A worker that should serve; waits until it says so.
  void Serve(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--model-path=" + model_->path(), "--metrics-address=127.0.0.1:0",
                                 "--no-pin", "--ready-file=" + dir_.File("ready")});
    Run(std::move(flags));
    ASSERT_TRUE(WaitUntil([&] { return !worker_->Running() || ReadReadyFile(); }));
    ASSERT_TRUE(worker_->Running()) << worker_->Log();
    metrics_port_ = ParseEndpoint(ready_["metrics"])->port;
  }
  void Run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), ATELIER_WORKER_BINARY);
    worker_ = std::make_unique<ChildProcess>(flags, dir_.File("log"));
  }
  // The exit status of a worker that cannot start.
  int StatusOf(std::vector<std::string> flags) {
    Run(std::move(flags));
    return worker_->Wait();
  }
  bool ReadReadyFile() {
    std::ifstream file(dir_.File("ready"));
    for (std::string line; std::getline(file, line);) {
      const std::pair<std::string, std::string> fact =
          absl::StrSplit(line, absl::MaxSplits('=', 1));
      ready_.insert(fact);
    }
    return !ready_.empty();
  }
  bool MetricsSay(const std::string& line) {
    return absl::StrContains(HttpGet(metrics_port_, "/metrics"), line);
  }

  static inline std::unique_ptr<testing::TempDir> model_;
  testing::TempDir dir_;
  std::unique_ptr<ChildProcess> worker_;
  std::map<std::string, std::string> ready_;
  int metrics_port_ = 0;
};

TEST_F(WorkerProcessTest, ServesOverTcpAndUnixSocketUntilTerminated) {
  const std::string socket = "unix:" + dir_.File("worker.sock");
  Serve({"--listen=127.0.0.1:0", "--listen=" + socket, "--method=int8", "--shard-slice=1/3",
         "--experts=0-9"});
  EXPECT_THAT(HttpGet(metrics_port_, "/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ready_["listen"], AllOf(StartsWith("127.0.0.1:"), HasSubstr("," + socket)));
  for (const std::string& address :
       std::vector<std::string>(absl::StrSplit(ready_["listen"], ','))) {
    testing::WorkerClient client(address);
    const WorkerDescription description = client.WaitForDescription();
    EXPECT_EQ(description.state, WorkerState::kServing);
    EXPECT_EQ(description.method, "INT8");
    EXPECT_EQ(description.hidden_size, kTinyHidden);
    EXPECT_NE(description.epoch, 0u);
    ASSERT_EQ(description.shards.size(), 1u);
    EXPECT_EQ(description.shards[0], (ShardSpec{{1, 2, 3}, 0, 10, 1, 3}));
    const ForwardReply reply = client.Call(5);
    ATELIER_ASSERT_OK(reply.status);
    ASSERT_EQ(reply.sums.size(), 1u);
    EXPECT_EQ(reply.sums[0].data.size(), 5 * kTinyHidden * sizeof(float));
    EXPECT_EQ(reply.non_finite_tokens, 0);
  }
  EXPECT_TRUE(MetricsSay("\natelier_worker_tokens_total 10\n"));
  EXPECT_TRUE(MetricsSay("\natelier_worker_expert_rows_total 40\n"));
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 0) << worker_->Log();
  EXPECT_FALSE(std::filesystem::exists(dir_.File("ready")));
  EXPECT_THAT(worker_->Log(), HasSubstr("worker_drained"));
}

// Shared memory carries bf16, TCP int8 where the worker multiplies that.
TEST_F(WorkerProcessTest, AnswersTheSameBitsInWhateverFormRowsCome) {
  for (const auto& [method, form] :
       std::vector<std::pair<std::string, ActivationForm>>{{"int8", ActivationForm::kInt8Row},
                                                           {"mxfp4", ActivationForm::kInt8Blocks},
                                                           {"bf16", ActivationForm::kBf16}}) {
    SCOPED_TRACE(method);
    ready_.clear();
    std::filesystem::remove(dir_.File("ready"));
    const std::string shm = dir_.File("shm.sock");
    Serve({"--listen=127.0.0.1:0", "--shm-listen=" + shm, "--method=" + method});
    testing::WorkerClient as_bf16("shm:" + shm), over_tcp(ready_["listen"]);
    EXPECT_EQ(over_tcp.WaitForDescription().quantized_rows, form);
    as_bf16.WaitForDescription();
    for (const int num_tokens : {1, 5, 70}) {
      const ForwardReply want = as_bf16.CallRandom(num_tokens),
                         got = over_tcp.CallRandom(num_tokens);
      ATELIER_ASSERT_OK(want.status);
      ATELIER_ASSERT_OK(got.status);
      ASSERT_EQ(want.sums.size(), 1u);
      ASSERT_EQ(got.sums.size(), 1u);
      EXPECT_EQ(want.sums[0].data, got.sums[0].data);
    }
    worker_->Signal(SIGTERM);
    EXPECT_EQ(worker_->Wait(), 0) << worker_->Log();
  }
}

TEST_F(WorkerProcessTest, HoldsWhatThePlacementGivesItAndNothingElse) {
  const std::string path = dir_.File("placement.json");
  PlacementFile placement;
  placement.num_experts = 16;
  placement.workers = {
      {"a", "h", 0, 0, {{{1, 3}, 0, 4, 0, 1}, {{1, 2}, 4, 6, 1, 3}, {{2}, 8, 16, 0, 1}}},
      {"b", "h", 0, 0, {{{2}, 0, 16, 0, 1}}},
      {"c", "h", 0, 0, {}},
      {"d", "h", 0, 0, {{{1}, 0, 4, 0, 1}, {{1}, 3, 6, 0, 1}}},
      {"e", "h", 0, 0, {{{0}, 0, 4, 0, 1}}}};
  const auto write = [&] { std::ofstream(path) << placement.ToJson(); };
  write();
  Serve({"--listen=127.0.0.1:0", "--placement=" + path, "--worker=a"});
  {
    testing::WorkerClient client(ready_["listen"]);
    const WorkerDescription description = client.WaitForDescription();
    EXPECT_EQ(description.shards, placement.workers[0].shards);
    placement.model_digest = description.model_digest;
    const ForwardReply reply = client.Call(3);
    ATELIER_ASSERT_OK(reply.status);
    ASSERT_EQ(reply.sums.size(), 2u);  // of layer 1
    // Matrices of 16-column panels: per layer four experts of 192 columns, two of 64; eight of 192.
    const int64_t bytes = 3 * 256 * 2 * (2 * 4 * 192 + 2 * 2 * 64 + 8 * 192);
    EXPECT_TRUE(MetricsSay(absl::StrCat("\natelier_worker_weight_bytes ", bytes, "\n")));
  }
  worker_->Signal(SIGTERM);
  worker_->Wait();
  const auto refused = [&](const std::string& worker, const std::string& reason) {
    write();
    EXPECT_EQ(
        StatusOf({"--model-path=" + model_->path(), "--listen=127.0.0.1:0",
                  "--metrics-address=127.0.0.1:0", "--placement=" + path, "--worker=" + worker}),
        2);
    EXPECT_THAT(worker_->Log(), AllOf(HasSubstr("--placement=" + path), HasSubstr(reason)));
  };
  refused("x", "there is no worker \\\"x\\\"; there are a, b, c, d, e");
  refused("c", "gives it no experts");
  refused("d", "worker d: shards ");
  refused("e", "layer 0 has no experts");
  placement.num_experts = 17;
  refused("b", "is of a model with 17 experts");
  placement.num_experts = 16;
  placement.model_digest[0] ^= 1;
  refused("b", "plan again");
}

// The rows of the test's calls go to experts 0-3 of layer 1.
TEST_F(WorkerProcessTest, RefusesRowsForExpertsThatItWasToldToSkip) {
  const std::string path = dir_.File("device.txt");
  std::ofstream(path) << "1: 4-15 # on the device\n";
  Serve({"--listen=127.0.0.1:0", "--skip-experts=" + path});
  {
    testing::WorkerClient client(ready_["listen"]);
    client.WaitForDescription();
    ATELIER_EXPECT_OK(client.Call(2).status);
  }
  ready_.clear();
  worker_->Signal(SIGTERM);
  worker_->Wait();
  std::ofstream(path) << "1: 3\n";
  Serve({"--listen=127.0.0.1:0", "--skip-experts=" + path});
  testing::WorkerClient client(ready_["listen"]);
  client.WaitForDescription();
  EXPECT_THAT(client.Call(2).status,
              testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("]=3: ")));
  worker_->Signal(SIGTERM);
  worker_->Wait();
  std::ofstream(path) << "1: 3\n9: 1\n";
  EXPECT_EQ(StatusOf({"--model-path=" + model_->path(), "--listen=127.0.0.1:0",
                      "--metrics-address=127.0.0.1:0", "--skip-experts=" + path}),
            2);
  EXPECT_THAT(worker_->Log(), HasSubstr("--skip-experts=" + path + ": line 2: "));
}

TEST_F(WorkerProcessTest, SharedMemoryGivesTheSameBitsAndFollowsARestart) {
  const std::string socket = dir_.File("shm.sock");
  const std::vector<std::string> flags = {"--listen=127.0.0.1:0", "--shm-listen=" + socket};
  Serve(flags);
  testing::WorkerClient grpc(ready_["listen"]);
  testing::WorkerClient shared("shm:" + socket);
  const uint64_t epoch = grpc.WaitForDescription().epoch;
  EXPECT_EQ(shared.WaitForDescription().epoch, epoch);
  for (const int num_tokens : {1, 5, 300}) {
    const ForwardReply expected = grpc.Call(num_tokens);
    const ForwardReply reply = shared.Call(num_tokens);
    ATELIER_ASSERT_OK(reply.status);
    ASSERT_EQ(reply.sums.size(), expected.sums.size());
    EXPECT_EQ(reply.sums[0].data, expected.sums[0].data) << num_tokens;
  }
  worker_->Signal(SIGKILL);
  worker_->Wait();
  ready_.clear();
  std::filesystem::remove(dir_.File("ready"));
  Serve(flags);
  ASSERT_TRUE(WaitUntil([&] {
    const WorkerDescription now = shared.WaitForDescription();
    return now.epoch != epoch && shared.Call(1).status.ok();
  }));
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 0) << worker_->Log();
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST_F(WorkerProcessTest, TerminationLetsCallsInFlightFinish) {
  Serve({"--listen=127.0.0.1:0", "--cpu-isa=scalar"});
  testing::WorkerClient client(ready_["listen"]);
  client.WaitForDescription();
  absl::Notification done;
  ForwardReply reply;
  const auto call = client.Send(200, [&](ForwardReply answer) {
    reply = std::move(answer);
    done.Notify();
  });
  ASSERT_TRUE(WaitUntil([&] { return MetricsSay("\natelier_worker_tokens_total 200\n"); }));
  worker_->Signal(SIGINT);
  done.WaitForNotification();
  ATELIER_EXPECT_OK(reply.status);
  EXPECT_EQ(worker_->Wait(), 0);
}

// A batch that takes many seconds: scalar kernels and the largest call.
class BusyWorkerTest : public WorkerProcessTest {
 protected:
  void ServeAndKeepBusy(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--listen=127.0.0.1:0", "--cpu-isa=scalar",
                               "--max-tokens-per-call=200000", "--max-queued-tokens=200000"});
    Serve(std::move(flags));
    client_ = std::make_unique<testing::WorkerClient>(ready_["listen"]);
    client_->WaitForDescription();
    call_ = client_->Send(100000, [](ForwardReply) {});
    ASSERT_TRUE(WaitUntil([&] { return MetricsSay("\natelier_worker_tokens_total 100000\n"); }));
  }

  std::unique_ptr<testing::WorkerClient> client_;
  std::unique_ptr<ForwardInFlight> call_;
};

TEST_F(BusyWorkerTest, SecondSignalEndsItAtOnce) {
  ServeAndKeepBusy({});
  worker_->Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil(
      [&] { return absl::StrContains(HttpGet(metrics_port_, "/readyz"), "is draining"); }));
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 128 + SIGTERM);
}

TEST_F(BusyWorkerTest, DrainTimeoutBoundsTheEnd) {
  ServeAndKeepBusy({"--drain-timeout=100ms"});
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->Wait(), 0);
  EXPECT_THAT(worker_->Log(), AllOf(HasSubstr("drain_incomplete"), HasSubstr("1 calls")));
}

TEST_F(WorkerProcessTest, BadFlagsAreStatus2WithAReason) {
  for (const auto& [flag, part] :
       std::vector<std::pair<std::string, std::string>>{{"--threads=x", "--threads=x"},
                                                        {"--bogus", "unknown flag --bogus"},
                                                        {"--shard-slice=3/2", "3/2"},
                                                        {"--listen=0.0.0.0:0", "--insecure"},
                                                        {"stray", "stray"}}) {
    EXPECT_EQ(StatusOf({"--model-path=" + model_->path(), flag}), 2) << flag;
    EXPECT_THAT(worker_->Log(), AllOf(StartsWith("expert-worker: "), HasSubstr(part)));
  }
  EXPECT_EQ(StatusOf({}), 2);
  EXPECT_THAT(worker_->Log(), HasSubstr("--model-path is required"));
}

TEST_F(WorkerProcessTest, AValueThatOnlyModelOrMachineCanJudgeIsStatus2NamingTheFlag) {
  const std::vector<std::string> common = {"--model-path=" + model_->path(), "--listen=127.0.0.1:0",
                                           "--metrics-address=127.0.0.1:0"};
  for (const auto& [flag, reason] : std::vector<std::pair<std::string, std::string>>{
           {"--experts=0-16", "the model has experts 0-15"},
           {"--shard-slice=12/13", "at most 12 slices"},
           {"--numa-node=1000", "--numa-node=1000"},
           {"--threads=4096", "--threads=4096"}}) {
    std::vector<std::string> flags = common;
    flags.push_back(flag);
    EXPECT_EQ(StatusOf(flags), 2) << flag;
    EXPECT_THAT(worker_->Log(),
                AllOf(HasSubstr("worker_failed"), HasSubstr(flag), HasSubstr(reason)));
  }
}

TEST_F(WorkerProcessTest, AnUnwritableReadyFileIsNoticedBeforeAnythingElse) {
  EXPECT_EQ(StatusOf({"--model-path=/nonexistent", "--ready-file=/nonexistent/ready"}), 2);
  EXPECT_THAT(worker_->Log(), StartsWith("expert-worker: --ready-file=/nonexistent/ready: cannot"));
}

TEST_F(WorkerProcessTest, ABrokenCheckpointIsStatus1NamingTheFile) {
  const std::string broken = dir_.File("broken");
  std::filesystem::copy(model_->path(), broken);
  const std::string weights = broken + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  const std::vector<std::string> flags = {"--listen=127.0.0.1:0", "--metrics-address=127.0.0.1:0",
                                          "--model-path=" + broken};
  EXPECT_EQ(StatusOf(flags), 1);
  EXPECT_THAT(worker_->Log(), AllOf(HasSubstr("worker_failed"), HasSubstr("model.safetensors")));
  std::filesystem::remove(broken + "/config.json");
  EXPECT_EQ(StatusOf(flags), 1);
  EXPECT_THAT(worker_->Log(), HasSubstr("config.json"));
}

TEST_F(WorkerProcessTest, ATakenAddressIsStatus1NamingIt) {
  Serve({"--listen=127.0.0.1:0"});
  const std::string log = dir_.File("second.log");
  const auto second = [&](const std::string& listen, const std::string& metrics) {
    ChildProcess process({ATELIER_WORKER_BINARY, "--model-path=" + model_->path(),
                          "--listen=" + listen, "--metrics-address=" + metrics},
                         log);
    EXPECT_EQ(process.Wait(), 1);
    return process.Log();
  };
  EXPECT_THAT(second(ready_["listen"], "127.0.0.1:0"),
              HasSubstr("cannot listen on " + ready_["listen"]));
  EXPECT_THAT(second("127.0.0.1:0", ready_["metrics"]),
              HasSubstr("cannot listen on " + ready_["metrics"]));
}

TEST_F(WorkerProcessTest, ExplainsItselfWithoutAModel) {
  EXPECT_EQ(StatusOf({"--help"}), 0);
  EXPECT_THAT(worker_->Log(), AllOf(StartsWith("usage: expert-worker"), HasSubstr("--method")));
  EXPECT_EQ(StatusOf({"--version"}), 0);
  EXPECT_THAT(worker_->Log(), StartsWith("expert-worker "));
  EXPECT_EQ(StatusOf({"--capabilities"}), 0);
  EXPECT_THAT(worker_->Log(), AllOf(HasSubstr("BF16"), HasSubstr("INT8"), HasSubstr("selected")));
}

}  // namespace
}  // namespace atelier
