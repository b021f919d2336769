#include "libs/base/ready_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/read_file.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReadyFile, AppearsWholeReplacesAnOldOneAndGoes) {
  const testing::TempDir dir;
  const std::string path = dir.File("ready");
  std::ofstream(path) << "old=1\nmore=2\n";
  ASSERT_TRUE(WriteReadyFile(path, {{"listen", "127.0.0.1:7"}, {"metrics", "127.0.0.1:8"}}).ok());
  EXPECT_EQ(testing::ReadFile(path), "listen=127.0.0.1:7\nmetrics=127.0.0.1:8\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  RemoveReadyFile(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  RemoveReadyFile(path);
}

TEST(ReadyFile, SaysWhyItCannotBeWritten) {
  const testing::TempDir dir;
  const absl::Status status = WriteReadyFile(dir.File("missing/ready"), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("--ready-file="), HasSubstr("missing/ready"), HasSubstr("No such file")));
}

TEST(ReadyFile, IsCheckedWithoutBeingThere) {
  const testing::TempDir dir;
  const std::string path = dir.File("ready");
  EXPECT_TRUE(CheckReadyFile("").ok());
  EXPECT_TRUE(CheckReadyFile(path).ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THAT(std::string(CheckReadyFile(dir.path() + "/none/ready").message()),
              HasSubstr("--ready-file="));
  EXPECT_THAT(std::string(CheckReadyFile(dir.path()).message()), HasSubstr("is a directory"));
}

TEST(ReadyFile, WhatIsNoFileIsLeftAsItIs) {
  const testing::TempDir dir;
  const std::string link = dir.File("link");
  std::filesystem::create_symlink("/nonexistent", link);
  EXPECT_THAT(std::string(CheckReadyFile(link).message()), HasSubstr("is a symbolic link"));
  EXPECT_THAT(std::string(CheckReadyFile("/dev/null").message()),
              HasSubstr("--ready-file=/dev/null: is no regular file"));
}

TEST(ReadyFile, FilesOfOthersBesideItAreLeftAlone) {
  const testing::TempDir dir;
  const std::string path = dir.File("ready");
  std::ofstream(path + ".new") << "mine";
  ASSERT_TRUE(CheckReadyFile(path).ok());
  ASSERT_TRUE(WriteReadyFile(path, {}).ok());
  EXPECT_EQ(std::filesystem::file_size(path + ".new"), 4u);
  std::filesystem::create_directory(dir.File("folder"));
  EXPECT_FALSE(WriteReadyFile(dir.File("folder"), {}).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 3);
}

}  // namespace
}  // namespace atelier
