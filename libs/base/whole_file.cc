#include "libs/base/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr int kMaxNames = 100;
constexpr mode_t kMode = 0666;  // less the umask

absl::Status CannotWrite(int error) { return absl::ErrnoToStatus(error, "cannot be written"); }

// Not mkstemp, whose files no other user may read.
class StagingFile {
 public:
  ~StagingFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  absl::Status Open(const std::string& path) {
    // Processes of other containers may have the same number.
    for (int i = 0; i < kMaxNames; ++i) {
      const std::string name = absl::StrCat(path, ".", ::getpid(), "-", i, ".new");
      fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
      if (fd_ >= 0) {
        name_ = name;
        return absl::OkStatus();
      }
      if (errno != EEXIST) break;
    }
    return CannotWrite(errno);
  }

  absl::Status Write(absl::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return CannotWrite(errno);
      text.remove_prefix(static_cast<size_t>(written));
    }
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? absl::OkStatus() : CannotWrite(errno);
  }

  absl::Status MoveTo(const std::string& path) {
    if (std::rename(name_.c_str(), path.c_str()) != 0) return CannotWrite(errno);
    name_.clear();
    return absl::OkStatus();
  }

 private:
  int fd_ = -1;
  std::string name_;  // empty = nothing to remove
};

}  // namespace

absl::Status WriteWholeFile(const std::string& path, absl::string_view text) {
  StagingFile file;
  ATELIER_RETURN_IF_ERROR(file.Open(path));
  ATELIER_RETURN_IF_ERROR(file.Write(text));
  return file.MoveTo(path);
}

absl::Status CheckReplaceable(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return absl::OkStatus();
  const char* const what = S_ISDIR(status.st_mode)   ? "is a directory"
                           : S_ISLNK(status.st_mode) ? "is a symbolic link"
                                                     : "is no regular file";
  return absl::FailedPreconditionError(
      absl::StrCat(what, ", which a file would replace; give the path of a file"));
}

absl::Status CheckFolderWritable(const std::string& path) { return StagingFile().Open(path); }

}  // namespace atelier
