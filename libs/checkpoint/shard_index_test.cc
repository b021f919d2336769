#include "libs/checkpoint/shard_index.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ShardIndex, MapsTensorsAndSkipsEverythingElse) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const ShardIndex index,
      ParseShardIndex(R"({"metadata": {"total_size": 12.5, "weight_map": {"x": [1, null, true]}},
                          "weight_map": {"a": "2.safetensors", "b": "1.safetensors",
                                         "weight_map": "1.safetensors"},
                          "more": [{"a": [-1]}, "text"], "n": 7})",
                      "i.json"));
  EXPECT_THAT(index.files, ElementsAre("1.safetensors", "2.safetensors"));
  EXPECT_THAT(index.file_of,
              UnorderedElementsAre(Pair("a", "2.safetensors"), Pair("b", "1.safetensors"),
                                   Pair("weight_map", "1.safetensors")));
}

TEST(ShardIndex, RefusesWhatIsNoIndex) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "unexpected a list"},
      {"3", "a value that is no object"},
      {"null", "a value that is no object"},
      {"{}", "weight_map is missing"},
      {R"({"metadata": {}})", "weight_map is missing"},
      {R"({"weight_map": []})", "unexpected a list"},
      {R"({"weight_map": "a"})", "unexpected the string"},
      {R"({"weight_map": 1})", "unexpected 1"},
      {R"({"weight_map": {"a": 1}})", "tensor \"a\": unexpected 1"},
      {R"({"weight_map": {"a": null}})", "tensor \"a\": unexpected null"},
      {R"({"weight_map": {"a": {"b": "f"}}})", "tensor \"a\": unexpected an object"},
      {R"({"weight_map": {"a": ["f"]}})", "tensor \"a\": unexpected a list"},
      {R"({"weight_map": {"": "f"}})", "from 1 to 512 bytes"},
      {R"({"weight_map": {"a": "f", "a": "f"}})", "tensor \"a\": listed twice"},
      {R"({"weight_map": {"a": "f"}, "weight_map": {"b": "f"}})", "weight_map occurs twice"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(ParseShardIndex(bad.text, "i.json"),
                StatusIs(kInvalid, AllOf(HasSubstr("i.json"), HasSubstr(bad.message))))
        << bad.text;
  }
  EXPECT_THAT(ParseShardIndex(std::string(100000, '['), "i.json"),
              StatusIs(kInvalid, HasSubstr("nesting too deep")));
}

TEST(ShardIndex, RefusesFilesOutsideTheFolder) {
  for (const char* file : {"", ".", "..", "../x", "/etc/passwd", "a/b", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(ParseShardIndex(absl::StrCat(R"({"weight_map": {"a": ")", file, "\"}}"), "i.json"),
                StatusIs(kInvalid, AllOf(HasSubstr("tensor \"a\""), HasSubstr("without folders"))))
        << file;
  }
}

TEST(ShardIndex, RefusesMoreFilesThanCanBeMapped) {
  std::string text = "{\"weight_map\": {";
  for (int i = 0; i < 10001; ++i)
    absl::StrAppend(&text, i > 0 ? "," : "", "\"", i, "\":\"f", i, "\"");
  EXPECT_THAT(ParseShardIndex(text + "}}", "i.json"), StatusIs(kInvalid, HasSubstr("10001 files")));
}

}  // namespace
}  // namespace atelier
