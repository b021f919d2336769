#include "tools/atelier/fetch/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_file.h"

namespace atelier {
namespace {

constexpr mode_t kMode = 0644;

absl::Status SystemError(absl::string_view what, const std::string& path) {
  const int error = errno;
  const char* const advice =
      error == ENOSPC || error == EDQUOT
          ? "; what has come is kept: make room and run the same command again"
          : "";
  absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
  return absl::Status(status.code(), absl::StrCat(status.message(), advice));
}

absl::Status WriteAll(int fd, absl::Span<const uint8_t> bytes, std::optional<uint64_t> offset,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written =
        offset ? ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(*offset))
               : ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
    if (offset) *offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// So that a name that was given or taken lasts.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", folder);
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  // Some network file systems know no such thing.
  if (::fsync(fd) != 0 && errno != EINVAL) return SystemError("sync", folder);
  return absl::OkStatus();
}

// A file that gets its name when it is whole and on the disk: `content`, or `size` bytes of hole.
absl::Status Place(const std::string& path, const std::string& content, uint64_t size) {
  const std::string temporary = absl::StrCat(path, ".new");
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (fd < 0) return SystemError("create", temporary);
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  absl::Status status = WriteAll(fd, BytesOf(content), std::nullopt, temporary);
  if (status.ok() && ::ftruncate(fd, static_cast<off_t>(size)) != 0) {
    status = SystemError("make", absl::StrCat(temporary, " of ", size, " bytes"));
  }
  if (status.ok() && ::fsync(fd) != 0) status = SystemError("sync", temporary);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError("rename to", path);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  ATELIER_RETURN_IF_ERROR(status);
  return SyncFolderOf(path);
}

absl::Status PlaceText(const std::string& path, const std::string& content) {
  return Place(path, content, content.size());
}

std::optional<uint64_t> SizeOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(info.st_size);
}

bool HasJournal(const std::string& path) { return SizeOf(FetchJournalPath(path)).has_value(); }

absl::Status NotOurs(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, " was not made by atelier fetch and ",
                                                    why, ": move it away, or give another --dir"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Open(const std::string& path,
                                                               const RemoteContent& content) {
  std::unique_ptr<PartialFile> file(new PartialFile(path));
  const std::optional<uint64_t> size = SizeOf(path);
  if (size && !HasJournal(path)) {
    if (*size != content.size) {
      return NotOurs(path,
                     absl::StrCat("has ", *size, " bytes where the server's has ", content.size));
    }
    const absl::MutexLock lock(&file->mutex_);
    file->state_ = {content.source, content.size, content.etag, {}, 0};
    file->state_.have.Add({0, content.size});
    return file;
  }
  const absl::StatusOr<std::optional<FetchJournal>> journal =
      ReadFetchJournal(path, size.value_or(0));
  if (!journal.ok() && !absl::IsDataLoss(journal.status())) return journal.status();
  const bool same = size && journal.ok() && *journal && (*journal)->size == content.size &&
                    (*journal)->etag == content.etag;
  if (same) {
    const absl::MutexLock lock(&file->mutex_);
    file->state_ = **journal;
    file->state_.source = content.source;
  } else {
    file->begun_anew_ = size.has_value();
    ATELIER_RETURN_IF_ERROR(file->Begin(content));
  }
  ATELIER_RETURN_IF_ERROR(file->Reopen());
  return file;
}

PartialFile::~PartialFile() {
  if (data_ >= 0) ::close(data_);
  if (journal_ >= 0) ::close(journal_);
}

absl::Status PartialFile::Begin(const RemoteContent& content) {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return SystemError("remove", path_);
  const absl::MutexLock lock(&mutex_);
  state_ = {content.source, content.size, content.etag, {}, 0};
  ATELIER_RETURN_IF_ERROR(PlaceText(FetchJournalPath(path_), FetchJournalText(state_)));
  return Place(path_, "", content.size);
}

// Writes the journal anew, which drops a torn end and joins its lines.
absl::Status PartialFile::Reopen() {
  const std::string journal_path = FetchJournalPath(path_);
  const absl::MutexLock lock(&mutex_);
  ATELIER_RETURN_IF_ERROR(PlaceText(journal_path, FetchJournalText(state_)));
  journal_ = ::open(journal_path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (journal_ < 0) return SystemError("open", journal_path);
  data_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (data_ < 0) return SystemError("open", path_);
  return absl::OkStatus();
}

ByteRanges PartialFile::have() const {
  const absl::MutexLock lock(&mutex_);
  return state_.have;
}

absl::Status PartialFile::Write(uint64_t offset, absl::Span<const uint8_t> bytes) {
  if (data_ < 0) return NotOurs(path_, "is never written");
  return WriteAll(data_, bytes, offset, path_);
}

absl::Status PartialFile::Commit(ByteRange range) {
  if (range.size() == 0) return absl::OkStatus();
  if (::fdatasync(data_) != 0) return SystemError("sync", path_);
  const absl::MutexLock lock(&mutex_);
  const std::string journal_path = FetchJournalPath(path_);
  ATELIER_RETURN_IF_ERROR(
      WriteAll(journal_, BytesOf(FetchJournalLine(range)), std::nullopt, journal_path));
  if (::fdatasync(journal_) != 0) return SystemError("sync", journal_path);
  state_.have.Add(range);
  return absl::OkStatus();
}

absl::Status WriteFetchedFile(const std::string& path, const std::string& source,
                              const std::string& etag, const std::string& content) {
  if (SizeOf(path) && !HasJournal(path)) {
    ATELIER_ASSIGN_OR_RETURN(const MappedFile there, MappedFile::Open(path));
    if (there.text() == content) return absl::OkStatus();
    return NotOurs(path, "has other content than the server's");
  }
  FetchJournal journal{source, content.size(), etag, {}, 0};
  journal.have.Add({0, journal.size});
  ATELIER_RETURN_IF_ERROR(PlaceText(path, content));
  return PlaceText(FetchJournalPath(path), FetchJournalText(journal));
}

std::string EtagOfFetchedFile(const std::string& path) {
  const std::optional<uint64_t> size = SizeOf(path);
  if (!size) return "";
  const absl::StatusOr<std::optional<FetchJournal>> journal = ReadFetchJournal(path, *size);
  return journal.ok() && *journal && (*journal)->IsWhole() ? (*journal)->etag : "";
}

}  // namespace atelier
