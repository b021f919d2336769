#include "libs/checkpoint/fetch_journal.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/testing/status_matchers.h"
#include "libs/testing/temp_dir.h"

namespace atelier {
namespace {

using ::atelier::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FetchJournal Sample() {
  FetchJournal journal{"https://h/org/name", 1000, "W/\"a\\b\n\"", {}, 0};
  journal.have.Add({0, 10});
  journal.have.Add({20, 30});
  return journal;
}

TEST(FetchJournal, ReadsWhatItWrites) {
  const std::string text = FetchJournalText(Sample());
  ATELIER_ASSERT_OK_AND_ASSIGN(const FetchJournal read, ParseFetchJournal(text, "f"));
  EXPECT_EQ(read.source, Sample().source);
  EXPECT_EQ(read.size, 1000u);
  EXPECT_EQ(read.etag, Sample().etag);
  EXPECT_EQ(read.have.ranges(), Sample().have.ranges());
  EXPECT_EQ(read.valid_bytes, text.size());
  EXPECT_FALSE(read.IsWhole());
}

TEST(FetchJournal, LinesThatAreTornOrDamagedAndAllAfterThemDoNotCount) {
  const std::string begun = FetchJournalText(Sample());
  const std::string line = FetchJournalLine({30, 1000});
  for (size_t length = 0; length < line.size(); ++length) {
    const std::string text = begun + line.substr(0, length);
    ATELIER_ASSERT_OK_AND_ASSIGN(const FetchJournal read, ParseFetchJournal(text, "f"));
    EXPECT_EQ(read.have.ranges(), Sample().have.ranges());
    EXPECT_EQ(read.valid_bytes, begun.size());
  }
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    ATELIER_ASSERT_OK_AND_ASSIGN(const FetchJournal read,
                                 ParseFetchJournal(begun + damaged + line, "f"));
    EXPECT_EQ(read.have.ranges(), Sample().have.ranges()) << i;
  }
  ATELIER_ASSERT_OK_AND_ASSIGN(const FetchJournal whole, ParseFetchJournal(begun + line, "f"));
  EXPECT_THAT(whole.have.ranges(), ElementsAre(ByteRange{0, 10}, ByteRange{20, 1000}));
}

TEST(FetchJournal, RefusesWhatIsNone) {
  const std::string text = FetchJournalText(Sample());
  const size_t first_range = text.find("have");
  for (size_t length = 0; length < first_range; ++length) {
    EXPECT_THAT(ParseFetchJournal(text.substr(0, length), "f"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("f: ")));
  }
  EXPECT_THAT(ParseFetchJournal(absl::StrCat(text, FetchJournalLine({900, 1001})), "f"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("never writes")));
}

TEST(FetchJournal, BelongsToAFileOfItsSize) {
  const testing::TempDir dir;
  const std::string path = dir.File("m.safetensors");
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto none, ReadFetchJournal(path, 1000));
  EXPECT_FALSE(none.has_value());
  std::ofstream(FetchJournalPath(path)) << FetchJournalText(Sample());
  ATELIER_ASSERT_OK_AND_ASSIGN(const auto found, ReadFetchJournal(path, 1000));
  EXPECT_TRUE(found.has_value());
  EXPECT_THAT(ReadFetchJournal(path, 999),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of 1000 bytes")));
}

}  // namespace
}  // namespace atelier
