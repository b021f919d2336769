#include "libs/checkpoint/fetch_journal.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/checkpoint/sha256.h"

namespace atelier {
namespace {

constexpr absl::string_view kFirstLine = "atelier-fetch 1";
constexpr size_t kSumChars = 8;
// A journal gets a line per few MiB and is rewritten when a fetch begins.
constexpr size_t kMaxJournalBytes = size_t{1} << 30;

std::string SumOf(absl::string_view text) {
  Sha256 sha;
  sha.Add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return sha.Finish().substr(0, kSumChars);
}

std::string Line(absl::string_view text) { return absl::StrCat(text, " ", SumOf(text), "\n"); }

// The next line without its checksum; nullopt at the end, and for a line that is torn.
std::optional<absl::string_view> TakeLine(absl::string_view& text) {
  const size_t end = text.find('\n');
  if (end == absl::string_view::npos || end <= kSumChars) return std::nullopt;
  const absl::string_view line = text.substr(0, end - kSumChars - 1);
  const absl::string_view sum = text.substr(end - kSumChars, kSumChars);
  if (text[line.size()] != ' ' || sum != SumOf(line)) return std::nullopt;
  text.remove_prefix(end + 1);
  return line;
}

std::optional<std::string> TakeText(absl::string_view& text, absl::string_view name) {
  std::optional<absl::string_view> line = TakeLine(text);
  std::string value;
  const bool valid = line && absl::ConsumePrefix(&*line, name) && absl::CUnescape(*line, &value);
  if (!valid) return std::nullopt;
  return value;
}

std::optional<ByteRange> ParseRange(absl::string_view line, uint64_t size) {
  ByteRange range;
  if (!absl::ConsumePrefix(&line, "have ")) return std::nullopt;
  const std::vector<absl::string_view> ends = absl::StrSplit(line, ' ');
  const bool valid = ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.begin) &&
                     absl::SimpleAtoi(ends[1], &range.end) && range.begin < range.end &&
                     range.end <= size;
  if (!valid) return std::nullopt;
  return range;
}

absl::Status Broken(absl::string_view file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      file, ": ", what, "; remove it and the file that it is about, and fetch that anew"));
}

}  // namespace

std::string FetchJournalPath(absl::string_view path) { return absl::StrCat(path, ".fetch"); }

std::string FetchJournalText(const FetchJournal& journal) {
  std::string text = Line(kFirstLine);
  absl::StrAppend(&text, Line(absl::StrCat("source ", absl::CEscape(journal.source))),
                  Line(absl::StrCat("size ", journal.size)),
                  Line(absl::StrCat("etag ", absl::CEscape(journal.etag))));
  for (const ByteRange& range : journal.have.ranges()) {
    absl::StrAppend(&text, FetchJournalLine(range));
  }
  return text;
}

std::string FetchJournalLine(ByteRange range) {
  return Line(absl::StrCat("have ", range.begin, " ", range.end));
}

absl::StatusOr<FetchJournal> ParseFetchJournal(absl::string_view text, absl::string_view file) {
  const size_t all = text.size();
  if (TakeLine(text) != kFirstLine) return Broken(file, "is no journal of atelier fetch");
  std::optional<std::string> source = TakeText(text, "source ");
  const std::optional<std::string> size = TakeText(text, "size ");
  std::optional<std::string> etag = TakeText(text, "etag ");
  FetchJournal journal;
  if (!source || !size || !absl::SimpleAtoi(*size, &journal.size) || !etag) {
    return Broken(file, "a journal of atelier fetch whose beginning is damaged");
  }
  journal.source = *std::move(source);
  journal.etag = *std::move(etag);
  while (true) {
    journal.valid_bytes = all - text.size();
    const std::optional<absl::string_view> line = TakeLine(text);
    if (!line) return journal;
    const std::optional<ByteRange> range = ParseRange(*line, journal.size);
    if (!range) return Broken(file, "a journal of atelier fetch with a line that it never writes");
    journal.have.Add(*range);
  }
}

absl::StatusOr<std::optional<FetchJournal>> ReadFetchJournal(const std::string& path,
                                                             uint64_t size) {
  const std::string journal_path = FetchJournalPath(path);
  const absl::StatusOr<MappedFile> file = MappedFile::OpenSmall(journal_path, kMaxJournalBytes);
  if (absl::IsNotFound(file.status())) return std::optional<FetchJournal>();
  ATELIER_RETURN_IF_ERROR(file.status());
  ATELIER_ASSIGN_OR_RETURN(FetchJournal journal, ParseFetchJournal(file->text(), journal_path));
  if (journal.size == size) return std::optional<FetchJournal>(std::move(journal));
  return Broken(journal_path, absl::StrCat("is about a file of ", journal.size, " bytes, but ",
                                           path, " has ", size));
}

}  // namespace atelier
