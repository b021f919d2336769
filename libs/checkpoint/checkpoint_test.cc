#include "libs/checkpoint/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/read_file.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/synthetic_checkpoint.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

namespace fs = std::filesystem;

using ::atelier::testing::IsOk;
using ::atelier::testing::RawTensor;
using ::atelier::testing::ReadFile;
using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::atelier::testing::TinyGlm4MoeConfig;
using ::atelier::testing::TinyQwen3MoeConfig;
using ::atelier::testing::WriteSafetensors;
using ::atelier::testing::WriteSyntheticCheckpoint;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

// Small enough to write in a few milliseconds.
constexpr char kSmall[] = R"({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 48, "intermediate_size": 40,
    "moe_intermediate_size": 24})";

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A folder with a small model in three files, to be broken.
class ShardedCheckpoint : public ::testing::Test {
 protected:
  ShardedCheckpoint() {
    WriteSyntheticCheckpoint(dir_.path(),
                             {.config_json = TinyQwen3MoeConfig(kSmall), .num_files = 3});
  }

  absl::Status Open() const { return Checkpoint::Open(dir_.path()).status(); }
  std::string Digest() const { return Checkpoint::Open(dir_.path()).value()->digest(); }
  std::string Path(const std::string& file) const { return dir_.File(file); }
  void Replace(const std::string& file, const std::string& from, const std::string& to) const {
    const std::string before = ReadFile(Path(file));
    const std::string after = absl::StrReplaceAll(before, {{from, to}});
    ASSERT_NE(before, after);
    WriteFile(Path(file), after);
  }

  const std::string first_ = "model-00001-of-00003.safetensors";
  const std::string second_ = "model-00002-of-00003.safetensors";
  const std::string index_ = "model.safetensors.index.json";
  TempDir dir_;
};

TEST(Checkpoint, OpensWhatItsConfigPromises) {
  for (const std::string& config : {TinyQwen3MoeConfig(kSmall), TinyGlm4MoeConfig(kSmall),
                                    TinyQwen3MoeConfig(R"({"tie_word_embeddings": true,
                                        "attention_bias": true, "mlp_only_layers": [1]})")}) {
    for (int num_files : {1, 3}) {
      TempDir dir;
      WriteSyntheticCheckpoint(dir.path(), {.config_json = config, .num_files = num_files});
      ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
      ATELIER_EXPECT_OK(VerifyTensors(*checkpoint, Role::kAll));
      EXPECT_EQ(checkpoint->directory(), dir.path());
      EXPECT_EQ(checkpoint->digest().size(), 64u);
    }
  }
}

TEST(Checkpoint, FindsATensorWithItsBytes) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), {.config_json = TinyQwen3MoeConfig(kSmall)});
  WriteSafetensors(dir.File("model.safetensors"),
                   {{"a", {DType::kBF16, {3}, "ABCDEF"}}, {"b", {DType::kU8, {2, 1}, "xy"}}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  EXPECT_THAT(checkpoint->TensorNames(), ElementsAre("a", "b"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TensorView b, checkpoint->Find("b"));
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kU8);
  EXPECT_THAT(b.shape, ElementsAre(2, 1));
  EXPECT_THAT(b.data, ElementsAre('x', 'y'));
  EXPECT_EQ(b.file, "model.safetensors");
}

TEST_F(ShardedCheckpoint, RefusesAFolderThatIsNone) {
  EXPECT_THAT(Checkpoint::Open(Path("nowhere")), StatusIs(kNotFound, HasSubstr("nowhere")));
  EXPECT_THAT(Checkpoint::Open(Path("config.json")),
              StatusIs(kInvalid, HasSubstr("config.json: is no GGUF file, nor a folder")));
  EXPECT_THAT(Checkpoint::Open(""), StatusIs(kNotFound, HasSubstr("checkpoint")));
}

TEST_F(ShardedCheckpoint, RefusesAMissingOrBrokenConfig) {
  WriteFile(Path("config.json"), "{\"model_type\": ");
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr(dir_.path()), HasSubstr("config.json"))));
  WriteFile(Path("config.json"), TinyQwen3MoeConfig(R"({"model_type": "other"})"));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("other")));
  WriteFile(Path("config.json"), std::string(5 << 20, ' '));
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("5242880 bytes")));
  fs::remove(Path("config.json"));
  EXPECT_THAT(Open(), StatusIs(kNotFound, HasSubstr("config.json")));
}

TEST_F(ShardedCheckpoint, TakesStopIdsOfTheGenerationConfigIfThereIsOne) {
  WriteFile(Path("generation_config.json"), R"({"eos_token_id": [2, 5]})");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir_.path()));
  EXPECT_THAT(checkpoint->config().eos_token_ids, ElementsAre(2, 5));
  WriteFile(Path("generation_config.json"), "nonsense");
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("generation_config.json")));
  fs::remove(Path("generation_config.json"));
  EXPECT_THAT(Open(), IsOk());
}

TEST_F(ShardedCheckpoint, NamesAMissingFileAndHowManyAre) {
  fs::remove(Path(second_));
  EXPECT_THAT(Open(), StatusIs(kNotFound, AllOf(HasSubstr(second_), HasSubstr("1 of 3 files"),
                                                HasSubstr("tensor \"model."))));
  fs::remove(Path(first_));
  EXPECT_THAT(Open(), StatusIs(kNotFound, AllOf(HasSubstr(first_), HasSubstr("2 of 3 files"))));
  fs::remove(Path(index_));
  EXPECT_THAT(Open(), StatusIs(kNotFound, HasSubstr("neither")));
}

TEST_F(ShardedCheckpoint, NamesATruncatedFile) {
  const auto size = fs::file_size(Path(first_));
  for (const uintmax_t length : {size - 1, size / 2}) {
    fs::resize_file(Path(first_), length);
    EXPECT_THAT(Open(), StatusIs(kDataLoss, AllOf(HasSubstr(dir_.path()), HasSubstr(first_),
                                                  HasSubstr("tensor"))));
  }
  for (const uintmax_t length : {uintmax_t{100}, uintmax_t{8}, uintmax_t{7}, uintmax_t{0}}) {
    fs::resize_file(Path(first_), length);
    EXPECT_THAT(Open(), StatusIs(kDataLoss, HasSubstr(first_))) << length;
  }
}

TEST_F(ShardedCheckpoint, NamesWhatIsNoRegularFile) {
  fs::remove(Path(first_));
  ASSERT_EQ(::mkfifo(Path(first_).c_str(), 0600), 0);
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr(first_), HasSubstr("regular"))));
  fs::remove(Path(first_));
  fs::create_directory(Path(first_));
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr(first_), HasSubstr("regular"))));
  fs::create_symlink("nowhere", Path("model.safetensors"));
  EXPECT_THAT(Open(), StatusIs(kNotFound, HasSubstr("model.safetensors")));
}

TEST_F(ShardedCheckpoint, NamesAnUnreadableFile) {
  fs::permissions(dir_.path(), fs::perms::all);
  fs::permissions(Path(second_), fs::perms::none);
  const uid_t user = ::geteuid();
  constexpr uid_t kNobody = 65534;
  if (user == 0 && ::seteuid(kNobody) != 0) GTEST_SKIP() << "root cannot become another user here";
  const absl::Status status = Open();
  ASSERT_EQ(::seteuid(user), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(second_)));
}

TEST_F(ShardedCheckpoint, FollowsLinks) {
  fs::create_directory(Path("blobs"));
  fs::rename(Path(first_), Path("blobs/0123"));
  fs::create_symlink("blobs/0123", Path(first_));
  EXPECT_THAT(Open(), IsOk());
}

TEST_F(ShardedCheckpoint, RefusesAnIndexThatDisagreesWithTheFiles) {
  const std::string name = "\"model.norm.weight\":\"";
  const std::string index = ReadFile(Path(index_));
  const size_t at = index.find(name);
  ASSERT_NE(at, std::string::npos);
  const std::string actual = index.substr(at + name.size(), first_.size());
  const std::string other = actual == first_ ? second_ : first_;
  Replace(index_, absl::StrCat(name, actual), absl::StrCat(name, other));
  EXPECT_THAT(
      Open(),
      StatusIs(kInvalid, HasSubstr(absl::StrCat(other, " holds tensor \"model.norm.weight\", but ",
                                                actual, " does"))));
  WriteFile(Path(index_), index);
  Replace(index_, "\"weight_map\":{", absl::StrCat("\"weight_map\":{\"ghost\":\"", first_, "\","));
  EXPECT_THAT(Open(), StatusIs(kInvalid, HasSubstr("tensor \"ghost\", but no file does")));
  WriteFile(Path(index_), "{\"weight_map\": {\"a\": \"../config.json\"}}");
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr(index_), HasSubstr("../config.json"))));
}

TEST_F(ShardedCheckpoint, RefusesATensorInTwoFiles) {
  WriteSafetensors(Path("extra.safetensors"), {{"model.norm.weight", {DType::kU8, {1}, "x"}},
                                               {"fresh", {DType::kU8, {1}, "x"}}});
  Replace(index_, "\"weight_map\":{", "\"weight_map\":{\"fresh\":\"extra.safetensors\",");
  EXPECT_THAT(Open(), StatusIs(kInvalid, AllOf(HasSubstr("model.norm.weight"),
                                               HasSubstr("is in both extra.safetensors and"))));
}

TEST_F(ShardedCheckpoint, PrefersTheSingleFileToTheIndex) {
  WriteSafetensors(Path("model.safetensors"), {{"only", {DType::kU8, {1}, "x"}}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir_.path()));
  EXPECT_THAT(checkpoint->TensorNames(), ElementsAre("only"));
}

TEST_F(ShardedCheckpoint, DigestFollowsContentAndNotNames) {
  const std::string digest = Digest();
  EXPECT_EQ(Digest(), digest);
  fs::rename(Path(first_), Path("z.safetensors"));
  Replace(index_, first_, "z.safetensors");
  EXPECT_EQ(Digest(), digest);
  std::string shard = ReadFile(Path("z.safetensors"));
  shard.back() = static_cast<char>(shard.back() + 1);
  WriteFile(Path("z.safetensors"), shard);
  const std::string changed = Digest();
  EXPECT_NE(changed, digest);
  Replace("config.json", "\"rope_theta\": 1000000.0", "\"rope_theta\": 1000001.0");
  EXPECT_NE(Digest(), changed);
}

TEST(Checkpoint, SkipsLayersThatPredictFurtherTokens) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), {.config_json = TinyGlm4MoeConfig(kSmall), .num_files = 2});
  EXPECT_THAT(ReadFile(dir.File("model.safetensors.index.json")), HasSubstr("layers.2.eh_proj"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  EXPECT_THAT(checkpoint->TensorNames(), ::testing::Each(Not(HasSubstr("layers.2."))));
  EXPECT_THAT(checkpoint->Find("model.layers.2.eh_proj.weight"),
              StatusIs(kNotFound, HasSubstr("")));
}

TEST(Checkpoint, RefusesLayersThatTheConfigDoesNotKnow) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), {.config_json = TinyQwen3MoeConfig(kSmall)});
  std::string config = ReadFile(dir.File("config.json"));
  const absl::string_view layers = "\"num_hidden_layers\":2";
  config.erase(std::remove(config.begin(), config.end(), ' '), config.end());
  ASSERT_THAT(config, HasSubstr(std::string(layers)));
  WriteFile(dir.File("config.json"),
            absl::StrReplaceAll(config, {{layers, "\"num_hidden_layers\":1"}}));
  EXPECT_THAT(Checkpoint::Open(dir.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("num_hidden_layers=1"), HasSubstr("layers.1."))));
}

TEST(Checkpoint, RefusesSharedExpertsThatTheConfigDoesNotKnow) {
  TempDir dir;
  WriteSyntheticCheckpoint(dir.path(), {.config_json = TinyGlm4MoeConfig(kSmall)});
  ATELIER_ASSERT_OK(Checkpoint::Open(dir.path()));
  std::string config = ReadFile(dir.File("config.json"));
  config.erase(std::remove(config.begin(), config.end(), ' '), config.end());
  const absl::string_view shared = "\"n_shared_experts\":1";
  ASSERT_THAT(config, HasSubstr(std::string(shared)));
  WriteFile(dir.File("config.json"),
            absl::StrReplaceAll(config, {{shared, "\"n_shared_experts\":0"}}));
  EXPECT_THAT(
      Checkpoint::Open(dir.path()),
      StatusIs(kInvalid, AllOf(HasSubstr("no shared experts"), HasSubstr("mlp.shared_experts."))));
}

TEST(Checkpoint, RequiresShapeAndAFloatingDtype) {
  TempDir dir;
  WriteFile(dir.File("config.json"), TinyQwen3MoeConfig(kSmall));
  WriteSafetensors(dir.File("model.safetensors"),
                   {{"w", {DType::kF16, {2, 1}, "abcd"}}, {"q", {DType::kI8, {2}, "ab"}}});
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(dir.path()));
  EXPECT_THAT(checkpoint->Require("w", {2, 1}), IsOk());
  EXPECT_THAT(checkpoint->Require("w", {1, 2}),
              StatusIs(kInvalid, HasSubstr("model.safetensors: tensor \"w\": shape [2, 1], but "
                                           "config.json promises [1, 2]")));
  EXPECT_THAT(checkpoint->Require("q", {2}), StatusIs(kInvalid, HasSubstr("dtype I8")));
  EXPECT_THAT(checkpoint->Require("ghost", {2}), StatusIs(kNotFound, HasSubstr("\"ghost\"")));
}

}  // namespace
}  // namespace atelier
