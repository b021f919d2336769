#include "libs/checkpoint/gguf_header.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_gguf.h"

namespace atelier {
namespace {

using ::atelier::testing::GgufWriter;
using ::atelier::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ4_K = 12;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::Span<const uint8_t> Span(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

absl::Status Parse(const std::string& bytes) {
  return ParseGgufHeader(Span(bytes), "m.gguf").status();
}

GgufWriter Good() {
  GgufWriter writer;
  writer.Add("general.architecture", "qwen3moe");
  writer.Add("n", 7);
  writer.Add("list", std::vector<std::string>{"a", "bc", ""});
  writer.AddTensor({"a.weight", kF32, {3, 2}, std::string(24, 'a')});
  writer.AddTensor({"b.weight", kQ4_0, {2, 32}, std::string(36, 'b')});
  return writer;
}

TEST(GgufHeader, ReadsMetadataAndTensors) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = Good();
    writer.version = version;
    const std::string bytes = writer.Bytes();
    ATELIER_ASSERT_OK_AND_ASSIGN(const GgufHeader header, ParseGgufHeader(Span(bytes), "m.gguf"));
    EXPECT_EQ(header.metadata.Find("general.architecture")->text, "qwen3moe");
    EXPECT_EQ(header.metadata.Find("n")->integer, 7);
    std::vector<std::string> list;
    for (GgufArrayReader it(*header.metadata.Find("list")); !it.done();) {
      list.emplace_back(it.Next().text);
    }
    EXPECT_THAT(list, ElementsAre("a", "bc", ""));
    ASSERT_EQ(header.tensors.size(), 2u);
    EXPECT_EQ(header.tensors[1].name, "b.weight");
    EXPECT_EQ(header.tensors[1].type->name, "Q4_0");
    EXPECT_THAT(header.tensors[0].shape, ElementsAre(3, 2));
    EXPECT_EQ(bytes.substr(header.tensors[1].begin, 36), std::string(36, 'b'));
    EXPECT_EQ(header.tensors[1].end - header.tensors[1].begin, 36u);
  }
}

TEST(GgufHeader, HonoursItsAlignment) {
  GgufWriter writer = Good();
  writer.alignment = 256;
  writer.Add("general.alignment", 256);
  const std::string bytes = writer.Bytes();
  ATELIER_ASSERT_OK_AND_ASSIGN(const GgufHeader header, ParseGgufHeader(Span(bytes), "m.gguf"));
  EXPECT_EQ(header.data_begin % 256, 0u);
  EXPECT_EQ(bytes.substr(header.tensors[1].begin, 36), std::string(36, 'b'));
}

// Also the last padding may be missing, as some writers leave it.
TEST(GgufHeader, NeedsEveryByteOfTheTensors) {
  const std::string bytes = Good().Bytes();
  ATELIER_ASSERT_OK_AND_ASSIGN(const GgufHeader header, ParseGgufHeader(Span(bytes), "m.gguf"));
  const size_t needed = header.tensors[1].end;
  ATELIER_EXPECT_OK(Parse(bytes.substr(0, needed)));
  EXPECT_THAT(Parse(bytes.substr(0, needed - 1)),
              StatusIs(kDataLoss, AllOf(HasSubstr("m.gguf"), HasSubstr("\"b.weight\""),
                                        HasSubstr("cut short"))));
}

// Nowhere may a file end without being missed.
TEST(GgufHeader, RefusesEveryShorterFile) {
  const std::string bytes = Good().Bytes();
  const size_t needed = ParseGgufHeader(Span(bytes), "m.gguf")->tensors[1].end;
  for (size_t length = 0; length < needed; ++length) {
    EXPECT_FALSE(Parse(bytes.substr(0, length)).ok()) << length;
  }
}

TEST(GgufHeader, RefusesJoinedParts) {
  const std::string bytes = Good().Bytes();
  EXPECT_THAT(Parse(bytes + bytes), StatusIs(kInvalid, HasSubstr("bytes follow the last tensor")));
}

struct Broken {
  const char* name;
  std::function<void(GgufWriter&)> change;
  absl::StatusCode code;
  std::vector<std::string> parts;  // of the message
};

std::string U32(uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
std::string U64(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

// A list of lists of … of no numbers.
std::string Nested(int depth) {
  std::string bytes;
  for (int i = 1; i < depth; ++i) bytes += U32(9) + U64(1);
  return bytes + U32(4) + U64(0);
}

const Broken kBroken[] = {
    {"version1", [](GgufWriter& w) { w.version = 1; }, kUnimplemented, {"version 1", "2 and 3"}},
    {"version4", [](GgufWriter& w) { w.version = 4; }, kUnimplemented, {"version 4"}},
    {"bigEndian", [](GgufWriter& w) { w.version = 3u << 24; }, kUnimplemented, {"big-endian"}},
    {"hugeTensorCount",
     [](GgufWriter& w) { w.extra_tensors = uint64_t{1} << 62; },
     kInvalid,
     {"claims 4611686018427387906 tensors"}},
    {"hugeKeyCount",
     [](GgufWriter& w) { w.extra_keys = uint64_t{1} << 40; },
     kInvalid,
     {"1099511627779 metadata keys"}},
    {"hugeKey", [](GgufWriter& w) { w.Add(std::string(2000, 'k'), 1); }, kInvalid, {"2000 bytes"}},
    {"emptyKey", [](GgufWriter& w) { w.Add("", 1); }, kInvalid, {"0 bytes"}},
    {"repeatedKey", [](GgufWriter& w) { w.Add("n", 8); }, kInvalid, {"\"n\"", "twice"}},
    {"hugeString",
     [](GgufWriter& w) { w.AddRaw("text", 8, U64(uint64_t{1} << 63)); },
     kDataLoss,
     {"\"text\"", "9223372036854775808 bytes"}},
    {"hugeList",
     [](GgufWriter& w) { w.AddRaw("numbers", 9, U32(10) + U64(uint64_t{1} << 61)); },
     kDataLoss,
     {"\"numbers\"", "a list of 2305843009213693952"}},
    {"hugeListOfTexts",
     [](GgufWriter& w) { w.AddRaw("texts", 9, U32(8) + U64(uint64_t{1} << 61)); },
     kDataLoss,
     {"\"texts\""}},
    {"deepList", [](GgufWriter& w) { w.AddRaw("deep", 9, Nested(5)); }, kInvalid, {"nested"}},
    {"unknownValueType", [](GgufWriter& w) { w.AddRaw("x", 13, ""); }, kInvalid, {"\"x\"", "13"}},
    {"unknownElementType",
     [](GgufWriter& w) { w.AddRaw("x", 9, U32(99) + U64(1)); },
     kInvalid,
     {"\"x\"", "99"}},
    {"noBool",
     [](GgufWriter& w) { w.AddRaw("x", 7, "\x02"); },
     kInvalid,
     {"\"x\"", "2 is neither"}},
    {"alignmentZero", [](GgufWriter& w) { w.Add("general.alignment", 0); }, kInvalid, {"=0"}},
    {"alignmentOdd",
     [](GgufWriter& w) { w.Add("general.alignment", 48); },
     kInvalid,
     {"general.alignment=48", "power of two"}},
    {"alignmentText",
     [](GgufWriter& w) { w.Add("general.alignment", "32"); },
     kInvalid,
     {"general.alignment=\"32\""}},
    {"repeatedTensor",
     [](GgufWriter& w) { w.tensors[1].name = "a.weight"; },
     kInvalid,
     {"\"a.weight\"", "twice"}},
    {"emptyName", [](GgufWriter& w) { w.tensors[0].name = ""; }, kInvalid, {"0 bytes"}},
    {"longName",
     [](GgufWriter& w) { w.tensors[0].name = std::string(600, 'x'); },
     kInvalid,
     {"600 bytes"}},
    {"noDimension", [](GgufWriter& w) { w.tensors[0].shape = {}; }, kInvalid, {"0 dimensions"}},
    {"fiveDimensions",
     [](GgufWriter& w) {
       w.tensors[0].shape = {1, 1, 1, 3, 2};
     },
     kInvalid,
     {"5 dimensions"}},
    {"dimensionZero",
     [](GgufWriter& w) {
       w.tensors[0].shape = {0, 2};
     },
     kInvalid,
     {"\"a.weight\"", "dimension 1 is 0"}},
    {"negativeDimension",
     [](GgufWriter& w) {
       w.tensors[0].shape = {3, -2};
     },
     kInvalid,
     {"dimension 0 is 18446744073709551614"}},
    {"tooManyElements",
     [](GgufWriter& w) {
       w.tensors[0].shape = {int64_t{1} << 32, int64_t{1} << 32};
     },
     kInvalid,
     {"dimension 1 is 4294967296"}},
    {"tooManyBytes",
     [](GgufWriter& w) {
       w.tensors[0].shape = {int64_t{1} << 31, int64_t{1} << 31};
     },
     kInvalid,
     {"\"a.weight\"", "64 bits"}},
    {"claimsMoreThanTheFile",
     [](GgufWriter& w) {
       w.tensors[1].shape = {1 << 20, 32};
     },
     kDataLoss,
     {"\"b.weight\"", "cut short"}},
    {"unknownType",
     [](GgufWriter& w) { w.tensors[0].type = 77; },
     kUnimplemented,
     {"\"a.weight\"", "type id 77", "Q4_K"}},
    {"foreignType",
     [](GgufWriter& w) { w.tensors[0].type = 144; },
     kUnimplemented,
     {"type id 144 (a type of ik_llama.cpp)"}},
    {"cutBlock",
     [](GgufWriter& w) { w.tensors[1].type = kQ4_K; },
     kInvalid,
     {"rows of 32 elements", "blocks of 256", "Q4_K"}},
    {"overlap",
     [](GgufWriter& w) { w.change_offset = [](size_t, uint64_t) { return uint64_t{0}; }; },
     kInvalid,
     {"overlaps"}},
    {"gap",
     [](GgufWriter& w) { w.change_offset = [](size_t, uint64_t at) { return at * 2; }; },
     kInvalid,
     {"\"b.weight\"", "belong to none"}},
    {"misaligned",
     [](GgufWriter& w) { w.change_offset = [](size_t i, uint64_t at) { return at + 8 * i; }; },
     kInvalid,
     {"\"b.weight\"", "alignment 32"}},
    {"hugeOffset",
     [](GgufWriter& w) { w.change_offset = [](size_t, uint64_t) { return ~uint64_t{31}; }; },
     kInvalid,
     {"\"b.weight\"", "too large"}},
    {"pastTheEnd",
     [](GgufWriter& w) { w.change_offset = [](size_t i, uint64_t) { return uint64_t{i} << 40; }; },
     kInvalid,
     {"\"b.weight\" at offset 1099511627776"}},
};

class BrokenGguf : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenGguf, IsRefusedByName) {
  GgufWriter writer = Good();
  GetParam().change(writer);
  const absl::Status status = Parse(writer.Bytes());
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(status.message(), HasSubstr("m.gguf"));
  for (const std::string& part : GetParam().parts) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BrokenGguf, ::testing::ValuesIn(kBroken),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GgufHeader, RefusesOtherFiles) {
  EXPECT_THAT(Parse("PK\x03\x04 and so on"), StatusIs(kInvalid, HasSubstr("no GGUF file")));
  EXPECT_THAT(Parse(""), StatusIs(kInvalid, HasSubstr("no GGUF file")));
}

// More of a header than any model has is not read, though the file had the bytes.
TEST(GgufHeader, BoundsTheHeader) {
  GgufWriter writer = Good();
  writer.Add("text", std::string(100'000'000, 'x'));
  EXPECT_THAT(Parse(writer.Bytes()),
              StatusIs(kInvalid, HasSubstr("a header may have at most 100000000 bytes")));
}

}  // namespace
}  // namespace atelier
