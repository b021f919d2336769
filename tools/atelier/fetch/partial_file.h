#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "libs/checkpoint/byte_ranges.h"
#include "libs/checkpoint/fetch_journal.h"

namespace atelier {

// What a server has under a name.
struct RemoteContent {
  std::string source;  // as FetchJournal's
  uint64_t size = 0;
  std::string etag;
};

// A file that comes in parts: sparse, of its full size from the start, with a FetchJournal beside
// it that is written before the file has its name, so that no moment of the fetch leaves a file
// that passes as whole. Thread-safe; every error names the path.
class PartialFile {
 public:
  // What is there of this content, or a file to begin with. Of another content than the journal
  // says, the file is removed (who has it mapped keeps it) and begun anew. A file without a journal
  // is someone else's and never written: it is whole if it has the size; else FAILED_PRECONDITION.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Open(const std::string& path,
                                                           const RemoteContent& content);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::string& path() const { return path_; }
  ByteRanges have() const;
  bool begun_anew() const { return begun_anew_; }  // over bytes of another content

  // Bytes that count only once they are committed. RESOURCE_EXHAUSTED when the disk is full.
  absl::Status Write(uint64_t offset, absl::Span<const uint8_t> bytes);
  // Brings what was written of `range` to the disk, then into the journal.
  absl::Status Commit(ByteRange range);

 private:
  explicit PartialFile(std::string path) : path_(std::move(path)) {}

  absl::Status Begin(const RemoteContent& content);
  absl::Status Reopen();

  const std::string path_;
  bool begun_anew_ = false;
  int data_ = -1;     // -1 = someone else's file
  int journal_ = -1;  // appends
  mutable absl::Mutex mutex_;
  FetchJournal state_ ABSL_GUARDED_BY(mutex_);
};

// Makes `path` a file of this content, in one step, with a journal that says that it is whole.
// FAILED_PRECONDITION for a file with other content that has no journal.
absl::Status WriteFetchedFile(const std::string& path, const std::string& source,
                              const std::string& etag, const std::string& content);
// The etag of a file that WriteFetchedFile made and that has its size still; empty otherwise.
std::string EtagOfFetchedFile(const std::string& path);

}  // namespace atelier
