#include <signal.h>
#include <sys/mount.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/child_process.h"
#include "libs/testing/fetcher_fixture.h"
#include "libs/testing/run_program.h"

// The real `atelier fetch`: killed in its midst, on a full disk, and where it may not write.

namespace atelier {
namespace {

using ::atelier::testing::FileServer;
using ::atelier::testing::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FetchProcessTest : public testing::FetcherFixture {
 protected:
  ~FetchProcessTest() override {
    if (mounted_) ::umount2(dir_.path().c_str(), MNT_DETACH);
  }

  std::vector<std::string> Command(const std::string& role) const {
    return {ATELIER_BINARY, "fetch",       server_.url(), "--role=" + role,  "--dir=" + dir_.path(),
            "--jobs=2",     "--max-gap=0", "--retries=1", "--retry-wait=1ms"};
  }
  Outcome RunFetch(const std::string& role) { return testing::RunProgram(Command(role)); }

  // False where only root may.
  bool Mount(const std::string& options) {
    mounted_ = ::mount("none", dir_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    return mounted_;
  }

  bool mounted_ = false;
};

TEST_F(FetchProcessTest, AKilledFetchIsContinuedToTheSameBytes) {
  std::atomic<int> ranges = 0, limit = 0;
  server_.Behave([&](const FileServer::Request& request) {
    FileServer::Answer answer;
    // What is killed next waits here, in the midst of a body.
    if (request.range && ++ranges > limit) answer.pause = absl::Milliseconds(20);
    return answer;
  });
  for (const int answered : {2, 4, 9}) {
    ranges = 0;
    limit = answered;
    testing::ChildProcess process(Command("frontend"), dir_.File(absl::StrCat("log-", answered)));
    ASSERT_TRUE(testing::WaitUntil([&] { return ranges > limit || !process.Running(); }));
    ASSERT_TRUE(process.Running()) << process.Log();
    process.Signal(SIGKILL);
    EXPECT_EQ(process.Wait(), 1000 + SIGKILL);
    ExpectNothingFalse(dir_.path(), published_->path());
  }
  server_.Behave(nullptr);
  server_.Forget();
  const Outcome last = RunFetch("frontend");
  EXPECT_EQ(last.status, 0) << last.output;
  ExpectFrontendReads(published_->path());
  const uint64_t continued = server_.body_bytes();
  std::filesystem::remove_all(dir_.path());
  server_.Forget();
  EXPECT_EQ(RunFetch("frontend").status, 0);
  EXPECT_LT(continued, server_.body_bytes());
}

TEST_F(FetchProcessTest, ADiskTooSmallIsNoticedBeforeTheTensors) {
  if (!Mount("size=2m")) GTEST_SKIP() << "only root may mount";
  const Outcome small = RunFetch("all");
  EXPECT_EQ(small.status, 1) << small.output;
  EXPECT_THAT(small.output, AllOf(HasSubstr("--dir=" + dir_.path()), HasSubstr("are free")));
  ExpectNothingFalse(dir_.path(), published_->path());
  ASSERT_EQ(::mount("none", dir_.path().c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  const Outcome large = RunFetch("all");
  EXPECT_EQ(large.status, 0) << large.output;
  ExpectFrontendReads(published_->path());
}

TEST_F(FetchProcessTest, ADiskThatFillsUpMeanwhileKeepsWhatHasCome) {
  if (!Mount("size=32m")) GTEST_SKIP() << "only root may mount";
  const std::string filler = dir_.File("filler");
  std::atomic<bool> filled = false;
  std::atomic<int> ranges = 0;
  server_.Behave([&](const FileServer::Request& request) {
    if (request.range && ++ranges == 12 && !filled.exchange(true)) {
      std::ofstream(filler) << std::string(64 << 20, 'x');  // as much as there is room for
    }
    return FileServer::Answer{};
  });
  const Outcome full = RunFetch("frontend");
  EXPECT_EQ(full.status, 1) << full.output;
  EXPECT_THAT(full.output, AllOf(HasSubstr("what has come is kept"), HasSubstr("make room")));
  ExpectNothingFalse(dir_.path(), published_->path());
  std::filesystem::remove(filler);
  const Outcome again = RunFetch("frontend");
  EXPECT_EQ(again.status, 0) << again.output;
  ExpectFrontendReads(published_->path());
}

TEST_F(FetchProcessTest, AFolderThatMayNotBeWrittenIsNamed) {
  if (!Mount("size=32m")) GTEST_SKIP() << "only root may mount";
  ASSERT_EQ(::mount("none", dir_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, ""), 0);
  const Outcome outcome = RunFetch("frontend");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr(dir_.path()), HasSubstr("Read-only file system")));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace atelier
