#include "tools/atelier/fetch/scratch_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace atelier {

absl::StatusOr<std::string> ScratchFolder::Make(const std::string& parent) {
  const absl::MutexLock lock(&mutex_);
  if (forbidden_) return absl::CancelledError("stopped");
  RemoveLocked();
  std::string path = absl::StrCat(parent, "/atelier-inspect-", ::getpid(), "-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a folder in ", parent));
  }
  path_ = path;
  return path;
}

void ScratchFolder::Remove() {
  const absl::MutexLock lock(&mutex_);
  RemoveLocked();
}

void ScratchFolder::Forbid() {
  const absl::MutexLock lock(&mutex_);
  forbidden_ = true;
  RemoveLocked();
}

void ScratchFolder::RemoveLocked() {
  if (path_.empty()) return;
  // Under another name first: who still makes files by the old one could outrun the removal.
  const std::string doomed = absl::StrCat(path_, ".gone");
  std::error_code ignored;
  std::filesystem::rename(path_, doomed, ignored);
  std::filesystem::remove_all(ignored ? path_ : doomed, ignored);
  path_.clear();
}

}  // namespace atelier
