#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/client/client.h"
#include "libs/testing/child_process.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "tests/integration/expert_sums.h"

// Real workers, two for each half of the experts, which die and freeze while they compute: whatever
// happens to them, and however rows are divided between them, no bit of any sum changes.

namespace atelier {
namespace {

using testing::ChildProcess;
using testing::WaitUntil;

class ReplicasTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kWorkers = 4;  // 0 and 2 hold one half, 1 and 3 the other

  void SetUp() override {
    testing::WriteSyntheticCheckpoint(dir_.File("model"),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 5});
    workers_.resize(kWorkers);
    for (size_t i = 0; i < kWorkers; ++i) Start(i);
    for (size_t i = 0; i < kWorkers; ++i) options_.workers.push_back(Address(i));
    options_.connect_timeout = absl::Minutes(1);
    auto client = ExpertClient::Connect(options_, clock_, logger_, nullptr);
    ATELIER_ASSERT_OK(client);
    client_ = *std::move(client);
    ASSERT_TRUE(AllConnected());
    for (const int count : {1, 2, 5, 70}) {
      batches_.emplace_back(count, static_cast<unsigned>(count));
    }
    undisturbed_ = Round();
  }

  // The halves' first replicas are reached over gRPC, the others over shared memory.
  std::string Address(size_t worker) const {
    return absl::StrCat(worker < 2 ? "unix:" : "shm:", dir_.File(absl::StrCat(worker)),
                        worker < 2 ? ".sock" : ".shm");
  }
  void Start(size_t worker) {
    const std::string path = dir_.File(absl::StrCat(worker));
    workers_[worker] = std::make_unique<ChildProcess>(
        std::vector<std::string>{ATELIER_WORKER_BINARY, "--model-path=" + dir_.File("model"),
                                 "--listen=unix:" + path + ".sock", "--shm-listen=" + path + ".shm",
                                 "--metrics-address=127.0.0.1:0", "--no-pin", "--threads=1",
                                 "--method=" + GetParam(),
                                 absl::StrCat("--shard-slice=", worker % 2, "/2")},
        path + ".log");
  }
  bool AllConnected() const {
    return WaitUntil([this] {
      size_t connected = 0;
      for (const WorkerInfo& info : client_->Workers()) connected += info.connected ? 1 : 0;
      return connected == kWorkers;
    });
  }
  std::vector<std::vector<float>> Round() { return testing::SumsOfAll(*client_, batches_); }
  // Rounds go on until `disturb` has run, at some moment of one of them, and one more.
  template <typename Disturb>
  void RoundsWhile(Disturb disturb) {
    std::atomic<bool> disturbed = false;
    std::thread other([&] {
      absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random_() % 3000)));
      disturb();
      disturbed = true;
    });
    while (!disturbed) EXPECT_EQ(Round(), undisturbed_);
    other.join();
    EXPECT_EQ(Round(), undisturbed_);
  }

  testing::TempDir dir_;
  SystemClock clock_;
  Logger logger_{Severity::kError};
  ClientOptions options_;
  std::mt19937 random_{20261203};
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<ExpertClient> client_;
  std::vector<testing::RandomRows> batches_;
  std::vector<std::vector<float>> undisturbed_;
};

INSTANTIATE_TEST_SUITE_P(Methods, ReplicasTest, ::testing::Values("bf16", "int8"),
                         [](const auto& info) { return info.param; });

TEST_P(ReplicasTest, DeathChangesNoBitBeforeDuringAndAfter) {
  for (size_t victim = 0; victim < kWorkers; ++victim) {
    SCOPED_TRACE(victim);
    RoundsWhile([&] { workers_[victim]->Signal(SIGKILL); });
    EXPECT_EQ(workers_[victim]->Wait(), 1000 + SIGKILL);
    RoundsWhile([&] {
      Start(victim);
      EXPECT_TRUE(AllConnected());
    });
  }
}

TEST_P(ReplicasTest, AFreezeChangesNoBit) {
  for (size_t victim = 0; victim < kWorkers; ++victim) {
    SCOPED_TRACE(victim);
    RoundsWhile([&] { workers_[victim]->Signal(SIGSTOP); });
    // Its late answers come now.
    RoundsWhile([&] { workers_[victim]->Signal(SIGCONT); });
  }
}

TEST_P(ReplicasTest, ARollingRestartLosesNothing) {
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    SCOPED_TRACE(worker);
    RoundsWhile([&] {
      workers_[worker]->Signal(SIGTERM);
      EXPECT_EQ(workers_[worker]->Wait(), 0) << workers_[worker]->Log();
      Start(worker);
      EXPECT_TRUE(AllConnected());
    });
  }
}

}  // namespace
}  // namespace atelier
