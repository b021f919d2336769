#include <signal.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/child_process.h"
#include "libs/testing/file_server.h"
#include "libs/testing/read_file.h"
#include "libs/testing/run_program.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"
#include "tests/integration/worker_client.h"

// The real expert-worker binary and its packed files.

namespace atelier {
namespace {

using ::atelier::testing::ChildProcess;
using ::atelier::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kLayers = 11;  // with experts
constexpr size_t kFiles = 2 * kLayers;

// One expert-worker on a store.
class StoreWorker {
 public:
  StoreWorker(const std::string& folder, std::vector<std::string> flags)
      : ready_(folder + "/ready") {
    std::filesystem::create_directory(folder);
    flags.insert(flags.begin(), {ATELIER_WORKER_BINARY, "--listen=127.0.0.1:0", "--no-pin",
                                 "--metrics-address=127.0.0.1:0", "--ready-file=" + ready_});
    process_ = std::make_unique<ChildProcess>(flags, folder + "/log");
  }

  ChildProcess& process() { return *process_; }
  // Waits until it serves or has ended: the address it serves at, or nothing.
  std::string Address() {
    std::string address;
    WaitUntil([&] {
      std::ifstream file(ready_);
      for (std::string line; std::getline(file, line);) {
        absl::string_view rest = line;
        if (absl::ConsumePrefix(&rest, "listen=")) address = std::string(rest);
      }
      return !address.empty() || !process_->Running();
    });
    return address;
  }
  // What it computes, byte by byte.
  std::string Answer() {
    const std::string address = Address();
    EXPECT_NE(address, "") << process_->Log();
    if (address.empty()) return "";
    testing::WorkerClient client(address);
    client.WaitForDescription();
    const ForwardReply reply = client.Call(3);
    ATELIER_EXPECT_OK(reply.status);
    if (reply.sums.empty()) return "";
    const auto& data = reply.sums[0].data;
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
  }
  void Kill() {
    process_->Signal(SIGKILL);
    EXPECT_EQ(process_->Wait(), 1000 + SIGKILL);
  }
  size_t NumPacked() {
    size_t count = 0;
    for (const absl::string_view line : absl::StrSplit(process_->Log(), '\n')) {
      count += absl::StrContains(line, "store_file_packed") ? 1 : 0;
    }
    return count;
  }

 private:
  std::string ready_;
  std::unique_ptr<ChildProcess> process_;
};

class StoreProcessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(
        model_->path(), {.config_json = testing::TinyGlm4MoeConfig(
                             absl::StrCat("{\"num_hidden_layers\": ", kLayers + 1, "}")),
                         .seed = 11});
  }
  static void TearDownTestSuite() { model_.reset(); }

  // No store = in memory.
  std::unique_ptr<StoreWorker> Start(const std::string& store, std::vector<std::string> flags) {
    flags.push_back("--model-path=" + model_->path());
    if (!store.empty()) {
      std::filesystem::create_directory(store);
      flags.push_back("--store-dir=" + store);
    }
    return std::make_unique<StoreWorker>(dir_.File(absl::StrCat("worker-", num_workers_++)),
                                         std::move(flags));
  }
  static std::map<std::string, std::string> Files(const std::string& store) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
      if (!entry.is_regular_file()) continue;
      files[entry.path().filename()] = testing::ReadFile(entry.path());
    }
    return files;
  }
  static size_t NumFinished(const std::string& store) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
      count += entry.path().extension() == ".pack" ? 1 : 0;
    }
    return count;
  }

  static inline std::unique_ptr<testing::TempDir> model_;
  testing::TempDir dir_;
  int num_workers_ = 0;
};

TEST_F(StoreProcessTest, AKilledPackingIsContinuedToTheSameBytesAndAnswers) {
  // The search for scales makes packing slow enough to be killed in its midst.
  const std::string method = "--method=int4_g32";
  auto in_memory = Start("", {method});
  const std::string answer = in_memory->Answer();
  ASSERT_FALSE(answer.empty());
  const std::string whole = dir_.File("whole"), killed = dir_.File("killed");
  auto uninterrupted = Start(whole, {method});
  EXPECT_TRUE(uninterrupted->Answer() == answer);
  ASSERT_EQ(NumFinished(whole), kFiles);

  auto worker = Start(killed, {method});
  ASSERT_TRUE(WaitUntil([&] { return NumFinished(killed) >= 2; }));
  worker->Kill();
  const size_t finished = NumFinished(killed);
  ASSERT_LT(finished, kFiles) << "the kill came too late to show anything";
  worker = Start(killed, {method});
  EXPECT_TRUE(worker->Answer() == answer);
  EXPECT_EQ(worker->NumPacked(), kFiles - finished);
  EXPECT_TRUE(Files(killed) == Files(whole));

  worker->Kill();
  worker = Start(killed, {method, "--populate"});
  EXPECT_TRUE(worker->Answer() == answer);
  EXPECT_EQ(worker->NumPacked(), 0u);
}

// Gate and up once, down once for each slice.
TEST_F(StoreProcessTest, WorkersStartedAtOncePackOnce) {
  const std::string store = dir_.File("store");
  auto first = Start(store, {"--shard-slice=0/2"});
  auto second = Start(store, {"--shard-slice=1/2"});
  EXPECT_FALSE(first->Answer() == second->Answer());
  EXPECT_EQ(first->NumPacked() + second->NumPacked(), size_t{3 * kLayers});
  EXPECT_EQ(Files(store).size(), size_t{3 * kLayers});
  auto again = Start(store, {"--shard-slice=0/2"});
  EXPECT_TRUE(again->Answer() == first->Answer());
  EXPECT_EQ(again->NumPacked(), 0u);
}

// What `atelier fetch` brings for one worker is enough for its store, cold and warm; another slice
// is refused with the command that fetches it.
TEST_F(StoreProcessTest, ASliceOfACheckpointIsPackedIntoAStore) {
  testing::FileServer server(model_->path());
  const std::string slice = dir_.File("slice"), store = dir_.File("store");
  const testing::Outcome fetched =
      testing::RunProgram({ATELIER_BINARY, "fetch", server.url(), "--role=worker",
                           "--shard-slice=1/2", "--max-gap=0", "--dir=" + slice});
  ASSERT_EQ(fetched.status, 0) << fetched.output;
  const std::string answer = Start("", {"--shard-slice=1/2"})->Answer();
  ASSERT_FALSE(answer.empty());
  std::filesystem::create_directory(store);
  const auto start = [&](const std::string& flag) {
    return std::make_unique<StoreWorker>(
        dir_.File(absl::StrCat("of-slice-", num_workers_++)),
        std::vector<std::string>{"--model-path=" + slice, "--store-dir=" + store, flag});
  };
  auto cold = start("--shard-slice=1/2");
  EXPECT_TRUE(cold->Answer() == answer);
  EXPECT_EQ(cold->NumPacked(), kFiles);
  cold->Kill();
  auto warm = start("--shard-slice=1/2");
  EXPECT_TRUE(warm->Answer() == answer);
  EXPECT_EQ(warm->NumPacked(), 0u);
  auto other = start("--shard-slice=0/2");
  EXPECT_EQ(other->Address(), "");
  EXPECT_THAT(other->process().Log(),
              AllOf(HasSubstr("worker_failed"), HasSubstr("--role=worker --shard-slice=0/2")));
}

TEST_F(StoreProcessTest, AFolderThatIsNotThereEndsTheStart) {
  StoreWorker worker(dir_.File("worker"),
                     {"--model-path=" + model_->path(), "--store-dir=" + dir_.File("no-mount")});
  EXPECT_EQ(worker.process().Wait(), 1);
  EXPECT_THAT(worker.process().Log(),
              AllOf(HasSubstr("worker_failed"), HasSubstr("--store-dir=" + dir_.File("no-mount"))));
}

TEST_F(StoreProcessTest, ADiskTooSmallIsNoticedBeforeTheFirstFile) {
  const std::string store = dir_.File("small");
  std::filesystem::create_directory(store);
  if (::mount("none", store.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "only root may mount";
  }
  auto worker = Start(store, {});
  EXPECT_EQ(worker->process().Wait(), 2);
  EXPECT_THAT(worker->process().Log(),
              AllOf(HasSubstr("worker_failed"), HasSubstr("--store-dir=" + store),
                    HasSubstr("8388608 bytes are free")));
  EXPECT_TRUE(std::filesystem::is_empty(store));
  ::umount2(store.c_str(), MNT_DETACH);
}

// What a killed process left of the last file is begun anew, so its place on the disk is free.
TEST_F(StoreProcessTest, AnUnfinishedFileDoesNotFillTheDiskForItsSuccessor) {
  const std::string store = dir_.File("tight");
  std::filesystem::create_directory(store);
  if (::mount("none", store.c_str(), "tmpfs", 0, "size=1g") != 0) {
    GTEST_SKIP() << "only root may mount";
  }
  Start(store, {})->Answer();
  uintmax_t used = 0;
  std::string last;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
    if (!entry.is_regular_file()) continue;
    used += entry.file_size();
    last = entry.path();
  }
  std::filesystem::rename(last, last + ".partial");
  const std::string size = absl::StrCat("size=", used + 65536);
  ASSERT_EQ(::mount("none", store.c_str(), "tmpfs", MS_REMOUNT, size.c_str()), 0);
  auto again = Start(store, {});
  EXPECT_NE(again->Answer(), "");
  EXPECT_EQ(again->NumPacked(), 1u);
  ::umount2(store.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace atelier
