#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/checkpoint/byte_ranges.h"

namespace atelier {

// What `atelier fetch` has of a file, kept in a text file beside it, "NAME.fetch": lines, each with
// a checksum, of which the last ones may be torn. A file without one is whole. The file itself is
// sparse and has its full size from the start; what was not fetched reads as zeros.
struct FetchJournal {
  std::string source;  // what to give `atelier fetch` to get more
  uint64_t size = 0;   // of the file
  std::string etag;    // of the content, as the server names it; empty = it does not
  ByteRanges have;     // within the size

  // Bytes of the text up to the first torn line; what follows is to be cut off.
  size_t valid_bytes = 0;

  bool IsWhole() const { return have.Contains({0, size}); }
};

std::string FetchJournalPath(absl::string_view path);

// The whole text of a journal.
std::string FetchJournalText(const FetchJournal& journal);
// A line to append when `range` has come. The bytes must be on the disk before.
std::string FetchJournalLine(ByteRange range);

// DATA_LOSS naming `file` for anything that is no journal.
absl::StatusOr<FetchJournal> ParseFetchJournal(absl::string_view text, absl::string_view file);

// The journal of the file at `path`, which has `size` bytes; nullopt where there is none.
// DATA_LOSS for one that is broken or of a file of another size, and the system's errors.
absl::StatusOr<std::optional<FetchJournal>> ReadFetchJournal(const std::string& path,
                                                             uint64_t size);

}  // namespace atelier
