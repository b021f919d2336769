#include "libs/base/ready_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}),
            "listen=127.0.0.1:7\nmetrics=127.0.0.1:8\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
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
  EXPECT_THAT(std::string(CheckReadyFile(dir.path()).message()), HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace atelier
