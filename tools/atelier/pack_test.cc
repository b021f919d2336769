#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/run_program.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome Atelier(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ATELIER_BINARY);
  return testing::RunProgram(arguments);
}

// The tiny GLM model: layers 1-3 with 16 experts of 192 columns.
class AtelierPack : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<testing::TempDir>();
    testing::WriteSyntheticCheckpoint(model_->path(),
                                      {.config_json = testing::TinyGlm4MoeConfig(), .seed = 5});
  }
  static void TearDownTestSuite() { model_.reset(); }

  Outcome Pack(std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"pack", "--model-path=" + model_->path(), "--store-dir=" + store_.path()});
    return Atelier(flags);
  }
  // The path of the file whose name has `part`; empty = none.
  std::string FileWith(const std::string& part) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_.path())) {
      if (absl::StrContains(entry.path().filename().string(), part)) return entry.path();
    }
    return "";
  }

  static inline std::unique_ptr<testing::TempDir> model_;
  testing::TempDir store_;
};

TEST_F(AtelierPack, PacksOnceAndSaysWhatRequantisingLoses) {
  const Outcome first = Pack({"--method=int8", "--jobs=1"});
  EXPECT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, AllOf(HasSubstr("6 files of "), HasSubstr("\nlayer 1: 2 files packed"),
                                  HasSubstr("relative error mean 0.00"), HasSubstr("(expert "),
                                  HasSubstr("6 files packed, 0 were there")));
  // Progress is for people who look on.
  EXPECT_THAT(first.output, AllOf(Not(HasSubstr("\r")), Not(HasSubstr("left"))));
  const Outcome second = Pack({"--method=int8"});
  EXPECT_EQ(second.status, 0);
  EXPECT_THAT(second.output, AllOf(HasSubstr("layer 3: there"), HasSubstr("0 B to be packed"),
                                   HasSubstr("0 files packed, 6 were there")));
}

TEST_F(AtelierPack, PublishedPrecisionLosesNothing) {
  const Outcome outcome = Pack({});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("error")));
}

TEST_F(AtelierPack, TakesPartsOfTheModel) {
  const Outcome outcome = Pack(
      {"--layers=2-3", "--experts=4-7", "--method=int8", "--shard-slice=1/2", "--errors=false"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("error")));
  EXPECT_EQ(FileWith("layer-0001"), "");
  EXPECT_NE(FileWith("layer-0002.gate_up.experts-4-7.columns-0-191.pack"), "");
  EXPECT_NE(FileWith("layer-0003.down.experts-4-7.columns-96-191.pack"), "");
}

TEST_F(AtelierPack, VerifyPacksDamagedFilesAnew) {
  ASSERT_EQ(Pack({}).status, 0);
  const std::string path = FileWith("layer-0002.down");
  const auto byte = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2 + 20000);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto flip = [&] {
    file.seekg(byte);
    const auto flipped = static_cast<char>(file.get() ^ 1);
    file.seekp(byte);
    file.put(flipped).flush();
  };
  flip();
  EXPECT_THAT(Pack({}).output, HasSubstr("0 files packed, 6 were there"));
  const Outcome verified = Pack({"--verify"});
  EXPECT_EQ(verified.status, 0) << verified.output;
  EXPECT_THAT(verified.output,
              AllOf(HasSubstr(path), HasSubstr("is damaged: the checksum of expert"),
                    HasSubstr("packing it anew"), HasSubstr("1 files packed, 5 were there")));
  EXPECT_THAT(Pack({"--verify"}).output, HasSubstr("0 files packed, 6 were there"));
}

TEST_F(AtelierPack, RefusesWhatCannotBe) {
  const std::string model = "--model-path=" + model_->path();
  EXPECT_EQ(Atelier({"pack", model}).status, 2);
  EXPECT_EQ(Atelier({"pack", "--store-dir=" + store_.path()}).status, 2);
  for (const char* flag : {"--layers=3-1", "--layers=0-0", "--layers=2-9", "--experts=0-16",
                           "--shard-slice=0/13", "--method=int3", "--jobs=4000"}) {
    const Outcome outcome = Pack({flag});
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(std::string(flag).substr(0, 6)));
  }
  const Outcome missing = Atelier({"pack", model, "--store-dir=" + store_.File("none")});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.output, HasSubstr("--store-dir=" + store_.File("none")));
  EXPECT_THAT(Atelier({"pack", "--help"}).output,
              AllOf(HasSubstr("examples:"), HasSubstr("exit status")));
}

}  // namespace
}  // namespace atelier
