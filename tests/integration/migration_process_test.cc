#include <signal.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "libs/base/endpoint.h"
#include "libs/client/client.h"
#include "libs/model/placement_file.h"
#include "libs/testing/child_process.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "proto/atelier/v1/control.grpc.pb.h"
#include "tests/integration/expert_sums.h"

// Real workers that hold what `atelier plan` gave them, and that load and unload experts while
// calls go on: no call fails, and no bit of any sum changes.

namespace atelier {
namespace {

using testing::ChildProcess;
using testing::WaitUntil;

class MigrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteSyntheticCheckpoint(dir_.File("model"),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 5});
    for (const int count : {1, 3, 70}) batches_.emplace_back(count, static_cast<unsigned>(count));
  }

  std::string Path(size_t worker, const std::string& what) const {
    return absl::StrCat(dir_.File(absl::StrCat(worker)), ".", what);
  }
  void Start(std::vector<std::string> flags) {
    const size_t worker = workers_.size();
    flags.insert(
        flags.begin(),
        {ATELIER_WORKER_BINARY, "--model-path=" + dir_.File("model"), "--no-pin", "--threads=1",
         "--listen=unix:" + Path(worker, "sock"), "--shm-listen=" + Path(worker, "shm"),
         "--metrics-address=127.0.0.1:0", "--ready-file=" + Path(worker, "ready")});
    workers_.push_back(std::make_unique<ChildProcess>(flags, Path(worker, "log")));
    options_.workers.push_back(worker % 2 == 0 ? "unix:" + Path(worker, "sock")
                                               : "shm:" + Path(worker, "shm"));
    controls_.push_back(v1::WorkerControl::NewStub(
        grpc::CreateChannel("unix:" + Path(worker, "sock"), grpc::InsecureChannelCredentials())));
  }
  void Connect() {
    options_.connect_timeout = absl::Minutes(1);
    auto client = ExpertClient::Connect(options_, clock_, logger_, nullptr);
    ATELIER_ASSERT_OK(client);
    client_ = *std::move(client);
    EXPECT_TRUE(WaitUntil([&] {
      size_t connected = 0;
      for (const WorkerInfo& info : client_->Workers()) connected += info.connected ? 1 : 0;
      return connected == workers_.size();
    }));
    undisturbed_ = testing::SumsOfAll(*client_, batches_);
  }
  // "…_weight_bytes N" of its metrics.
  std::string WeightBytes(size_t worker) const {
    std::ifstream file(Path(worker, "ready"));
    for (std::string line; std::getline(file, line);) {
      if (!absl::StartsWith(line, "metrics=")) continue;
      const std::string text = testing::HttpGet(ParseEndpoint(line.substr(8))->port, "/metrics");
      const size_t at = text.find("\natelier_worker_weight_bytes ") + 29;
      return text.substr(at, text.find('\n', at) - at);
    }
    return "";
  }

  static v1::Shard Shard(uint32_t begin, uint32_t end, std::vector<uint32_t> layers = {}) {
    v1::Shard shard;
    for (const uint32_t layer : layers) shard.add_layers(layer);
    shard.set_expert_begin(begin);
    shard.set_expert_end(end);
    shard.set_slice_count(1);
    return shard;
  }
  grpc::Status Load(size_t worker, const v1::Shard& shard) {
    grpc::ClientContext context;
    v1::LoadRequest request;
    *request.add_shards() = shard;
    v1::LoadResponse response;
    return controls_[worker]->Load(&context, request, &response);
  }
  grpc::Status Unload(size_t worker, const v1::Shard& shard) {
    grpc::ClientContext context;
    v1::UnloadRequest request;
    *request.add_shards() = shard;
    v1::UnloadResponse response;
    return controls_[worker]->Unload(&context, request, &response);
  }
  bool ClientSees(size_t worker, const std::string& shards) {
    return WaitUntil([&] { return client_->Workers()[worker].shards == shards; });
  }
  // Calls go on, without a failure or another bit, until `change` has run.
  template <typename Change>
  void CallsWhile(Change change) {
    std::atomic<bool> changed = false;
    std::thread other([&] {
      change();
      changed = true;
    });
    do {
      EXPECT_EQ(testing::SumsOfAll(*client_, batches_), undisturbed_);
    } while (!changed && !HasFailure());
    other.join();
    EXPECT_EQ(testing::SumsOfAll(*client_, batches_), undisturbed_);
  }

  testing::TempDir dir_;
  SystemClock clock_;
  Logger logger_{Severity::kError};
  ClientOptions options_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::vector<std::unique_ptr<v1::WorkerControl::Stub>> controls_;
  std::unique_ptr<ExpertClient> client_;
  std::vector<testing::RandomRows> batches_;
  std::vector<std::vector<float>> undisturbed_;
};

TEST_F(MigrationTest, HalvesChangePlacesUnderCallsAndNoBitChanges) {
  Start({"--experts=0-7"});
  Start({"--experts=8-15"});
  Connect();
  const std::string half = WeightBytes(0);
  CallsWhile([&] {
    // Make before break: both hold all, and then each the other half. The unload follows at once,
    // before any client can know of the load.
    EXPECT_TRUE(Load(0, Shard(8, 16)).ok());
    EXPECT_TRUE(Load(1, Shard(0, 8)).ok());
    EXPECT_TRUE(Unload(0, Shard(0, 8)).ok());
    EXPECT_TRUE(Unload(1, Shard(8, 16)).ok());
    EXPECT_TRUE(ClientSees(0, "layers 1-3, experts 8-15, slice 0/1"));
    EXPECT_TRUE(ClientSees(1, "layers 1-3, experts 0-7, slice 0/1"));
  });
  EXPECT_EQ(WeightBytes(0), half);
  EXPECT_EQ(WeightBytes(1), half);
  // A layer of it back, which the worker of the other transport then serves alone.
  CallsWhile([&] {
    EXPECT_TRUE(Load(0, Shard(0, 8, {2})).ok());
    EXPECT_TRUE(Unload(1, Shard(0, 8, {2})).ok());
    EXPECT_TRUE(ClientSees(0,
                           "layers 1-3, experts 8-15, slice 0/1; layers 2, experts 0-7, slice "
                           "0/1"));
    EXPECT_TRUE(ClientSees(1, "layers 1,3, experts 0-7, slice 0/1"));
  });
  EXPECT_EQ(Unload(0, Shard(8, 12)).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Load(0, Shard(4, 12)).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const auto& worker : workers_) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(), 0) << worker->Log();
  }
}

TEST_F(MigrationTest, AWorkerThatDiesWhileItLoadsCostsNothing) {
  Start({"--experts=0-7"});
  Start({"--experts=8-15"});
  Start({"--experts=8-15"});
  Connect();
  CallsWhile([&] {
    std::thread loading([&] { Load(1, Shard(0, 8)); });
    workers_[1]->Signal(SIGKILL);
    loading.join();
  });
}

TEST_F(MigrationTest, WorkersOfAPlanSurviveTheLossOfAnyOneAndHoldWhatItSays) {
  const std::string placement = dir_.File("placement.json");
  const testing::Outcome planned =
      testing::RunProgram({ATELIER_BINARY, "plan", dir_.File("model"), "--workers=4",
                           "--memory=1GiB", "--blocks=4", "--out=" + placement});
  ASSERT_EQ(planned.status, 0) << planned.output;
  for (int i = 0; i < 4; ++i) {
    Start({"--placement=" + placement, absl::StrCat("--worker=worker-", i)});
  }
  Connect();
  for (size_t worker = 0; worker < 4; ++worker) {
    // Half of everything: 3 layers of 16 experts of 3 * 256 * 192 values, in two copies on four.
    EXPECT_EQ(WeightBytes(worker), absl::StrCat(3 * 16 * 3 * 256 * 192 * 2 * 2 / 4));
  }
  for (size_t lost = 0; lost < 4; ++lost) {
    SCOPED_TRACE(lost);
    client_ = nullptr;
    workers_.clear();
    controls_.clear();
    options_.workers.clear();
    for (int i = 0; i < 4; ++i) {
      Start({"--placement=" + placement, absl::StrCat("--worker=worker-", i)});
    }
    const auto before = undisturbed_;
    Connect();
    EXPECT_EQ(undisturbed_, before);
    CallsWhile([&] { workers_[lost]->Signal(SIGKILL); });
  }
}

}  // namespace
}  // namespace atelier
