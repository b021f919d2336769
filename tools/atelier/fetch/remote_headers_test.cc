#include "tools/atelier/fetch/remote_headers.h"

#include <sys/mount.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/fetcher_fixture.h"
#include "libs/testing/file_server.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::FileServer;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RemoteHeadersTest : public testing::FetcherFixture {
 protected:
  absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRemote() {
    auto opened = OpenRemoteHeaders(Options(), {dir_.path()}, scratch_);
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
    return opened;
  }

  ScratchFolder scratch_;
};

TEST_F(RemoteHeadersTest, OpensWhatIsPublishedAndLeavesNothing) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto remote, OpenRemote());
  const auto whole = Open(published_->path());
  EXPECT_EQ(remote->digest(), whole->digest());
  EXPECT_EQ(remote->TensorNames(), whole->TensorNames());
  EXPECT_EQ(BytesOfFrontend(*remote)->size(), BytesOfFrontend(*whole)->size());
  const ShardSpec shard{{}, 2, 9, 1, 3};
  const auto mine = BytesOfWorker(*remote, shard, {}), published = BytesOfWorker(*whole, shard, {});
  ASSERT_EQ(mine->size(), published->size());
  for (const auto& [file, bytes] : *mine) {
    EXPECT_EQ(bytes.ranges(), published->at(file).ranges()) << file;
  }
  uint64_t size = 0;
  for (const CheckpointFile& file : whole->Files()) size += file.bytes.size();
  EXPECT_LT(server_.body_bytes(), size / 8);
}

TEST_F(RemoteHeadersTest, ConnectionsThatBreakAreContinued) {
  server_.Behave([](const FileServer::Request& request) {
    FileServer::Answer answer;
    if (request.range) answer.drop_after = 7'000;
    return answer;
  });
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto remote, OpenRemote());
  EXPECT_EQ(remote->digest(), Open(published_->path())->digest());
}

TEST_F(RemoteHeadersTest, RefusesWholeFilesLiesAndAbsence) {
  const auto answer_tensors = [this](const FileServer::Answer& answer) {
    server_.Behave([answer](const FileServer::Request& request) {
      return absl::EndsWith(request.path, ".safetensors") ? answer : FileServer::Answer{};
    });
    return OpenRemote().status();
  };
  EXPECT_THAT(answer_tensors({.ranges = false}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("whole files only")));
  EXPECT_THAT(answer_tensors({.length_lie = -100}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("announces")));
  EXPECT_THAT(answer_tensors({.begin_lie = 10}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("was asked for")));
  EXPECT_THAT(answer_tensors({.drop_after = 0}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("after 3 attempts")));
  EXPECT_THAT(answer_tensors({.status = 404}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("404")));
}

TEST_F(RemoteHeadersTest, WhatIsWrongWithFilesIsSaidOfTheUrl) {
  testing::TempDir folder;
  std::filesystem::copy(published_->path(), folder.path(),
                        std::filesystem::copy_options::recursive);
  std::ofstream(folder.File("config.json")) << R"({"model_type": "unheard_of"})";
  FileServer server(folder.path());
  FetcherOptions options = Options();
  options.source = ParseRemoteSource(server.url(), kDefaultHub).value();
  EXPECT_THAT(OpenRemoteHeaders(options, {dir_.path()}, scratch_),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr(absl::StrCat("127.0.0.1:", server.port())),
                             HasSubstr("config.json"), Not(HasSubstr(dir_.path())))));
}

TEST_F(RemoteHeadersTest, AnotherFolderIsTakenWhereOneHasNoRoom) {
  const std::string absent = dir_.File("absent");
  const testing::TempDir second;
  ATELIER_EXPECT_OK(OpenRemoteHeaders(Options(), {absent, second.path()}, scratch_));
  EXPECT_THAT(OpenRemoteHeaders(Options(), {absent}, scratch_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(absent)));
  const std::string small = dir_.File("small");
  std::filesystem::create_directory(small);
  if (::mount("none", small.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "only root may mount";
  }
  EXPECT_THAT(OpenRemoteHeaders(Options(), {small}, scratch_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat("127.0.0.1:", server_.port()))));
  ATELIER_EXPECT_OK(OpenRemoteHeaders(Options(), {small, second.path()}, scratch_));
  EXPECT_TRUE(std::filesystem::is_empty(small));
  EXPECT_TRUE(std::filesystem::is_empty(second.path()));
  ::umount2(small.c_str(), MNT_DETACH);
}

TEST_F(RemoteHeadersTest, AForbiddenFolderEndsTheWork) {
  server_.Behave([this](const FileServer::Request& request) {
    if (request.number == 3) scratch_.Forbid();
    return FileServer::Answer{};
  });
  EXPECT_THAT(OpenRemote(), Not(testing::IsOk()));
  EXPECT_THAT(OpenRemote(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST_F(RemoteHeadersTest, OpensGguf) {
  testing::TempDir folder;
  testing::GgufOf(*Open(published_->path()), [](absl::string_view name) {
    return absl::StrContains(name, "_exps") ? "Q8_0" : "BF16";
  }).WriteSplit(folder.File("m"), 2);
  FileServer server(folder.path());
  FetcherOptions options = Options();
  options.source = ParseRemoteSource(server.url() + "m-00001-of-00002.gguf", kDefaultHub).value();
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto remote,
                               OpenRemoteHeaders(options, {dir_.path()}, scratch_));
  EXPECT_EQ(remote->digest(), Open(folder.File("m-00001-of-00002.gguf"))->digest());
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace atelier
