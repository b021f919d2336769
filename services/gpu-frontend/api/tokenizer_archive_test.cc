#include "services/gpu-frontend/api/tokenizer_archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::atelier::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kTokenizer[] = R"({"model": {"type": "BPE"}})";

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::map<std::string, std::string> Unpack(const std::string& zip) {
  std::map<std::string, std::string> files;
  archive* reader = archive_read_new();
  archive_read_support_format_zip_seekable(reader);
  EXPECT_EQ(archive_read_open_memory(reader, zip.data(), zip.size()), ARCHIVE_OK);
  archive_entry* entry = nullptr;
  while (archive_read_next_header(reader, &entry) == ARCHIVE_OK) {
    std::string content(static_cast<size_t>(archive_entry_size(entry)), '\0');
    EXPECT_EQ(archive_read_data(reader, content.data(), content.size()),
              static_cast<la_ssize_t>(content.size()));
    files[archive_entry_pathname(entry)] = content;
  }
  archive_read_free(reader);
  return files;
}

TEST(TokenizerArchive, HoldsTheTokenizerFilesAndNothingElse) {
  const TempDir dir;
  Write(dir.File("tokenizer.json"), kTokenizer);
  Write(dir.File("chat_template.jinja"), "{{ x }}");
  Write(dir.File("model.safetensors"), "weights");
  Write(dir.File("README.md"), "no");
  std::filesystem::create_directory(dir.File("vocab.json"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerArchive archive, PackTokenizer(dir.path()));
  EXPECT_THAT(Unpack(archive.zip), ElementsAre(Pair("chat_template.jinja", "{{ x }}"),
                                               Pair("tokenizer.json", kTokenizer)));
  EXPECT_EQ(archive.sha256.size(), 64u);
}

TEST(TokenizerArchive, SameFilesGiveTheSameBytes) {
  const TempDir first;
  const TempDir second;
  for (const TempDir* dir : {&first, &second}) {
    Write(dir->File("vocab.json"), "{}");
    Write(dir->File("merges.txt"), "a b");
  }
  std::filesystem::last_write_time(
      first.File("vocab.json"),
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(1000));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerArchive a, PackTokenizer(first.path()));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerArchive b, PackTokenizer(second.path()));
  EXPECT_EQ(a.zip, b.zip);
  EXPECT_EQ(a.sha256, b.sha256);
}

TEST(TokenizerArchive, FollowsLinksAsModelCachesUseThem) {
  const TempDir blobs;
  const TempDir dir;
  Write(blobs.File("abc123"), kTokenizer);
  std::filesystem::create_symlink(blobs.File("abc123"), dir.File("tokenizer.json"));
  ATELIER_ASSERT_OK_AND_ASSIGN(const TokenizerArchive archive, PackTokenizer(dir.path()));
  EXPECT_THAT(Unpack(archive.zip), ElementsAre(Pair("tokenizer.json", kTokenizer)));
}

TEST(TokenizerArchive, SaysWhatIsMissing) {
  const TempDir dir;
  Write(dir.File("config.json"), "{}");
  Write(dir.File("vocab.json"), "{}");
  EXPECT_THAT(PackTokenizer(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("merges.txt")));
  EXPECT_THAT(PackTokenizer(dir.File("absent")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
}

TEST(TokenizerArchive, RefusesAFileThatWasCutShort) {
  const TempDir dir;
  Write(dir.File("tokenizer.json"), "{\"model\": {\"vocab\": {\"a\":");
  EXPECT_THAT(PackTokenizer(dir.path()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tokenizer.json: 25 bytes")));
}

TEST(TokenizerArchive, RefusesATokenizerWithoutAModel) {
  for (const char* content : {"{}", "[\"model\"]", "3"}) {
    const TempDir dir;
    Write(dir.File("tokenizer.json"), content);
    EXPECT_THAT(PackTokenizer(dir.path()), StatusIs(absl::StatusCode::kDataLoss,
                                                    HasSubstr("tokenizer.json: has no \"model\"")))
        << content;
  }
}

TEST(TokenizerArchive, RefusesMoreFilesThanTheGatewayTakes) {
  const TempDir dir;
  Write(dir.File("tokenizer.json"), kTokenizer);
  for (int i = 0; i < 50; ++i) Write(dir.File("t" + std::to_string(i) + ".jinja"), "x");
  EXPECT_THAT(PackTokenizer(dir.path()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("51 files")));
}

}  // namespace
}  // namespace atelier
