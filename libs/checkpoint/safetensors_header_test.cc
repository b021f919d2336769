#include "libs/checkpoint/safetensors_header.h"

#include <cstring>
#include <string>
#include <vector>

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

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string FileOf(uint64_t header_length, const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &header_length, 8);
  return file + header + std::string(data_bytes, 'd');
}

absl::StatusOr<SafetensorsHeader> ParseFile(const std::string& file) {
  return ParseSafetensorsHeader({reinterpret_cast<const uint8_t*>(file.data()), file.size()},
                                "x.safetensors");
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& header, size_t data_bytes) {
  return ParseFile(FileOf(header.size(), header, data_bytes));
}

TEST(SafetensorsHeader, ListsTensorsByOffset) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      Parse(R"({"b": {"dtype": "F32", "shape": [2, 2], "data_offsets": [4, 20]},
                "__metadata__": {"format": "pt", "note": "any text"},
                "a": {"data_offsets": [0, 4], "shape": [2], "dtype": "BF16"}}   )",
            20));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].dtype, DType::kF32);
  EXPECT_THAT(header.tensors[1].shape, ElementsAre(2, 2));
  EXPECT_EQ(header.tensors[1].begin, 4u);
  EXPECT_EQ(header.tensors[1].end, 20u);
}

TEST(SafetensorsHeader, AcceptsScalarsEmptyTensorsAndEmptyFiles) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                               Parse(R"({"s": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
                "e": {"dtype": "BF16", "shape": [0, 5], "data_offsets": [8, 8]}})",
                                     8));
  EXPECT_EQ(header.tensors.size(), 2u);
  ATELIER_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader empty, Parse("{}", 0));
  EXPECT_TRUE(empty.tensors.empty());
}

TEST(SafetensorsHeader, RefusesFilesOfTooFewBytes) {
  for (size_t size = 0; size < 8; ++size) {
    EXPECT_THAT(ParseFile(std::string(size, '\0')), StatusIs(kDataLoss, HasSubstr("too few")));
  }
  EXPECT_THAT(ParseFile(std::string(8, '\0')), StatusIs(kInvalid, HasSubstr("begin with {")));
}

TEST(SafetensorsHeader, RefusesHeaderLengthsThatCannotBe) {
  for (uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}}) {
    EXPECT_THAT(ParseFile(FileOf(length, "{}", 0)),
                StatusIs(kInvalid, HasSubstr(absl::StrCat("header length ", length))));
  }
  for (uint64_t length : {uint64_t{3}, uint64_t{100'000'000}}) {
    EXPECT_THAT(ParseFile(FileOf(length, "{}", 0)),
                StatusIs(kDataLoss, HasSubstr("beyond the file's 10 bytes")));
  }
}

TEST(SafetensorsHeader, RefusesAFileThatIsOneByteShortOrLong) {
  const std::string header = R"({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})";
  ATELIER_EXPECT_OK(Parse(header, 16));
  EXPECT_THAT(Parse(header, 15),
              StatusIs(kDataLoss, AllOf(HasSubstr("x.safetensors"), HasSubstr("\"w\""),
                                        HasSubstr("[0, 16)"), HasSubstr("15 bytes"))));
  EXPECT_THAT(Parse(header, 17), StatusIs(kInvalid, HasSubstr("1 bytes of data after the last")));
}

struct BadHeader {
  const char* header;
  const char* message;
  absl::StatusCode code = kInvalid;
};

// One tensor "w" with the given dtype, shape and offsets, in a file with 8 bytes of data.
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("{\"w\": {\"dtype\": ", dtype, ", \"shape\": ", shape,
                      ", \"data_offsets\": ", offsets, "}}");
}

TEST(SafetensorsHeader, RefusesTextThatIsNoHeader) {
  const BadHeader cases[] = {
      {"", "begin with {"},
      {" {}", "begin with {"},
      {"\xef\xbb\xbf{}", "begin with {"},
      {"[]", "begin with {"},
      {"{", "not valid JSON"},
      {"{}}", "not valid JSON"},
      {"{} {}", "not valid JSON"},
      {"{'a': 1}", "not valid JSON"},
      {"{\"a\": {\"dtype\": \"\xff\"}}", "not valid JSON"},
      {"{\"a\": 1e999}", "not valid JSON"},
      {R"({"a": 1})", "tensor \"a\": unexpected 1"},
      {R"({"a": null})", "unexpected null"},
      {R"({"a": []})", "unexpected a list"},
      {R"({"": {}})", "from 1 to 512 bytes"},
      {R"({"a": {}})", "dtype, shape and data_offsets are needed"},
      {R"({"a": {"dtype": "BF16", "shape": [4]}})", "dtype, shape and data_offsets are needed"},
      {R"({"a": {"dtype": "BF16", "dtype": "BF16"}})", "dtype: occurs twice"},
      {R"({"a": {"shape": [4], "shape": [4]}})", "shape: occurs twice"},
      {R"({"a": {"stride": [4]}})", "unexpected the key \"stride\""},
      {R"({"a": {"dtype": {}}})", "dtype: unexpected an object"},
      {R"({"__metadata__": 3})", "\"__metadata__\": unexpected 3"},
      {R"({"__metadata__": {"a": 3}})", "unexpected 3"},
      {R"({"__metadata__": {"a": {}}})", "unexpected an object"},
      {R"({"__metadata__": {}, "__metadata__": {}})", "\"__metadata__\": occurs twice"},
  };
  for (const BadHeader& bad : cases) {
    EXPECT_THAT(Parse(bad.header, 8),
                StatusIs(bad.code, AllOf(HasSubstr("x.safetensors"), HasSubstr(bad.message))))
        << bad.header;
  }
  EXPECT_THAT(Parse(std::string("{}\0{}", 5), 0), StatusIs(kInvalid, HasSubstr("zero byte")));
}

TEST(SafetensorsHeader, RefusesEntriesThatMeanNothing) {
  const struct {
    const char *dtype, *shape, *offsets, *message;
    absl::StatusCode code = kInvalid;
  } cases[] = {
      {"\"BF16\"", "[4]", "[-8, 0]", "data_offsets: unexpected -8"},
      {"\"BF16\"", "[4]", "[0.0, 8.0]", "data_offsets: unexpected the number 0"},
      {"\"BF16\"", "[4]", "[0, 8e0]", "data_offsets: unexpected the number 8"},
      {"\"BF16\"", "[4]", "[0, 18446744073709551616]", "unexpected the number 1.8"},
      {"\"BF16\"", "[4]", "[\"0\", \"8\"]", "unexpected the string \"0\""},
      {"\"BF16\"", "[4]", "[0]", "two offsets are needed"},
      {"\"BF16\"", "[4]", "[]", "two offsets are needed"},
      {"\"BF16\"", "[4]", "[0, 4, 8]", "more than two offsets"},
      {"\"BF16\"", "[4]", "[[0, 8]]", "nesting too deep"},
      {"\"BF16\"", "[4]", "8", "data_offsets: unexpected 8"},
      {"\"BF16\"", "[4]", "[8, 0]", "end before they begin"},
      {"\"BF16\"", "[-4]", "[0, 8]", "shape: unexpected -4"},
      {"\"BF16\"", "[4.0]", "[0, 8]", "shape: unexpected the number 4"},
      {"\"BF16\"", "[9223372036854775808]", "[0, 8]", "shape: unexpected 9223372036854775808"},
      {"\"BF16\"", "4", "[0, 8]", "shape: unexpected 4"},
      {"\"BF16\"", "[1, 1, 1, 1, 1, 1, 1, 1, 4]", "[0, 8]", "more than 8 dimensions"},
      {"\"BF16\"", "[3]", "[0, 8]", "shape [3] of BF16 takes 6 bytes"},
      {"\"F32\"", "[4]", "[0, 8]", "shape [4] of F32 takes 16 bytes"},
      {"\"BF16\"", "[4294967296, 4294967296]", "[0, 8]", "more than 2^64"},
      // 2^63 elements of two bytes are 0 modulo 2^64.
      {"\"BF16\"", "[4611686018427387904, 2]", "[0, 0]", "more than 2^64"},
      {"\"BF16\"", "[0, 4611686018427387904, 4611686018427387904]", "[0, 8]", "takes 0 bytes"},
      {"16", "[4]", "[0, 8]", "dtype: unexpected 16"},
      {"\"bf16\"", "[4]", "[0, 8]", "dtype: \"bf16\" is not supported", kUnimplemented},
      {"\"F4\"", "[16]", "[0, 8]", "tensor \"w\": dtype: \"F4\" is not supported", kUnimplemented},
      {"\"BF16\"", "[8]", "[0, 16]", "reach beyond the 8 bytes", kDataLoss},
      {"\"U8\"", "[9223372036854775807]", "[0, 9223372036854775807]", "reach beyond", kDataLoss},
  };
  for (const auto& bad : cases) {
    const std::string header = Entry(bad.dtype, bad.shape, bad.offsets);
    EXPECT_THAT(Parse(header, 8),
                StatusIs(bad.code, AllOf(HasSubstr("x.safetensors"), HasSubstr(bad.message))))
        << header;
  }
}

std::string TwoTensors(const std::string& first, const std::string& second) {
  return absl::StrCat(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )", first,
                      R"(}, "b": {"dtype": "U8", "shape": [4], "data_offsets": )", second, "}}");
}

TEST(SafetensorsHeader, RefusesOverlapsHolesAndRepeats) {
  ATELIER_EXPECT_OK(Parse(TwoTensors("[4, 8]", "[0, 4]"), 8));
  EXPECT_THAT(Parse(TwoTensors("[0, 4]", "[2, 6]"), 6),
              StatusIs(kInvalid, HasSubstr("tensor \"b\": data_offsets [2, 6) overlap those of "
                                           "tensor \"a\", [0, 4)")));
  EXPECT_THAT(Parse(TwoTensors("[0, 4]", "[0, 4]"), 4), StatusIs(kInvalid, HasSubstr("overlap")));
  EXPECT_THAT(Parse(TwoTensors("[0, 4]", "[5, 9]"), 9),
              StatusIs(kInvalid, HasSubstr("tensor \"b\": data_offsets [5, 9) leave a hole after "
                                           "byte 4")));
  EXPECT_THAT(Parse(TwoTensors("[1, 5]", "[5, 9]"), 9), StatusIs(kInvalid, HasSubstr("hole")));
  const std::string entry = R"("w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})";
  EXPECT_THAT(Parse(absl::StrCat("{", entry, ", ", entry, "}"), 0),
              StatusIs(kInvalid, HasSubstr("tensor \"w\" occurs twice")));
}

TEST(SafetensorsHeader, BoundsNestingAndTokens) {
  const std::string deep = absl::StrCat("{\"a\": ", std::string(1000000, '['));
  EXPECT_THAT(Parse(deep, 0), StatusIs(kInvalid, HasSubstr("nesting too deep at byte 8")));
  const std::string objects = [] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "{\"a\":";
    return text;
  }();
  EXPECT_THAT(Parse(objects, 0), StatusIs(kInvalid, HasSubstr("nesting too deep")));
  for (const std::string& token : {absl::StrCat("\"", std::string(2 << 20, 'n'), "\""),
                                   std::string(2 << 20, '1'), std::string(2 << 20, ' ')}) {
    EXPECT_THAT(Parse(absl::StrCat("{", token, ": 1}"), 0),
                StatusIs(kInvalid, HasSubstr("overlong token")));
  }
  const std::string name(513, 'n');
  EXPECT_THAT(Parse(absl::StrCat("{\"", name, "\": {}}"), 0),
              StatusIs(kInvalid, HasSubstr("from 1 to 512")));
}

TEST(SafetensorsHeader, IsNotConfusedByBracketsAndQuotesInNames) {
  ATELIER_ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      Parse(R"({"\\\"[[[[{{{": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})", 0));
  EXPECT_EQ(header.tensors[0].name, "\\\"[[[[{{{");
}

TEST(SafetensorsHeader, ToleratesPaddingOfAnyLength) {
  ATELIER_EXPECT_OK(Parse(absl::StrCat("{}", std::string(3 << 20, ' ')), 0));
}

TEST(SafetensorsHeader, EscapesAndCutsNamesInMessages) {
  const std::string name = absl::StrCat("a\\n\\u0007", std::string(300, 'b'));
  EXPECT_THAT(Parse(absl::StrCat("{\"", name, "\": {}}"), 0),
              StatusIs(kInvalid, AllOf(HasSubstr("\"a\\n\\007bbb"), HasSubstr("bbb...\""))));
}

}  // namespace
}  // namespace atelier
