#include "libs/checkpoint/gguf_set.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_gguf.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

namespace fs = std::filesystem;

using ::atelier::testing::GgufWriter;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A set of three files of two tensors each.
class GgufSetTest : public ::testing::Test {
 protected:
  GgufSetTest() {
    writer_.Add("general.architecture", "qwen3moe");
    for (const char name : std::string("abcdef")) {
      writer_.AddTensor({std::string(1, name), 0, {8}, std::string(32, name)});
    }
    writer_.WriteSplit(dir_.File("m"), 3);
  }

  std::string Part(int part) {
    return dir_.File("m-0000" + std::to_string(part) + "-of-00003.gguf");
  }
  absl::Status Open() { return OpenGgufSet(Part(1)).status(); }

  testing::TempDir dir_;
  GgufWriter writer_;
};

TEST_F(GgufSetTest, FindsTheOtherParts) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const GgufSet set, OpenGgufSet(Part(1)));
  ASSERT_EQ(set.files.size(), 3u);
  EXPECT_EQ(set.metadata().Find("general.architecture")->text, "qwen3moe");
  const GgufTensor& last = set.files[2].header.tensors[1];
  EXPECT_EQ(last.name, "f");
  EXPECT_EQ(set.Data(2, last)[31], 'f');
}

TEST_F(GgufSetTest, TakesASingleFileOfAnyName) {
  writer_.Write(dir_.File("whatever"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const GgufSet set, OpenGgufSet(dir_.File("whatever")));
  EXPECT_EQ(set.files.size(), 1u);
}

TEST_F(GgufSetTest, NamesAMissingPart) {
  fs::remove(Part(2));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               AllOf(HasSubstr("m-00002-of-00003.gguf"), HasSubstr("part 2 of 3"),
                                     HasSubstr("missing"))));
  EXPECT_THAT(OpenGgufSet(dir_.File("none.gguf")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.gguf")));
}

TEST_F(GgufSetTest, AsksForTheFirstPart) {
  EXPECT_THAT(OpenGgufSet(Part(2)).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("part 2 of 3"),
                                       HasSubstr("give the first part, m-00001-of-00003.gguf"))));
}

TEST_F(GgufSetTest, NoticesARenamedPart) {
  fs::copy_file(Part(1), dir_.File("other.gguf"));
  EXPECT_THAT(OpenGgufSet(dir_.File("other.gguf")).status(),
              StatusIs(kInvalid, HasSubstr("name must end in -00001-of-00003.gguf")));
  fs::copy_file(Part(2), Part(3), fs::copy_options::overwrite_existing);
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr("m-00003-of-00003.gguf"),
                                               HasSubstr("say part 2 of 3"))));
}

TEST_F(GgufSetTest, RefusesATensorInTwoParts) {
  writer_.tensors[5].name = "a";
  writer_.WriteSplit(dir_.File("m"), 3);
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr("\"a\""), HasSubstr("m-00003-of"),
                                               HasSubstr("m-00001-of"))));
}

TEST_F(GgufSetTest, RefusesPartsOfAnotherSet) {
  writer_.AddTensor({"g", 0, {8}, std::string(32, 'g')});
  writer_.WriteSplit(dir_.File("n"), 3);
  fs::rename(dir_.File("n-00003-of-00003.gguf"), Part(3));
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("split.tensors.count=6, but the parts hold 7")));
}

TEST_F(GgufSetTest, NamesThePartThatIsCutShort) {
  fs::resize_file(Part(3), fs::file_size(Part(3)) - 1);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("m-00003-of-00003.gguf"), HasSubstr("\"f\""))));
}

TEST_F(GgufSetTest, RefusesJoinedParts) {
  std::ofstream first(Part(1), std::ios::binary | std::ios::app);
  first << std::ifstream(Part(2), std::ios::binary).rdbuf();
  first.close();
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("must not be joined")));
}

}  // namespace
}  // namespace atelier
