#include "libs/checkpoint/packed_directory.h"

#include <dirent.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace atelier {

absl::StatusOr<FileSystemInfo> InspectFileSystem(const std::string& directory) {
  struct statfs info = {};
  if (::statfs(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", directory));
  }
  FileSystemInfo result;
  if (info.f_type == TMPFS_MAGIC) result.medium = StoreMedium::kMemory;
  if (info.f_type == HUGETLBFS_MAGIC) result.medium = StoreMedium::kHugePages;
  // Without limits of their own, tmpfs and hugetlbfs have no blocks.
  if (info.f_blocks > 0) {
    result.free_bytes = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }
  return result;
}

absl::StatusOr<std::vector<PackedDirectoryEntry>> ListPackedFiles(const std::string& directory) {
  std::vector<PackedDirectoryEntry> entries;
  DIR* const open = ::opendir(directory.c_str());
  if (open == nullptr) {
    if (errno == ENOENT) return entries;
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot list ", directory));
  }
  const absl::Cleanup close = [open] { ::closedir(open); };
  errno = 0;
  while (const dirent* found = ::readdir(open)) {
    const std::optional<PackedFileName> holds = ParsePackedFileName(found->d_name);
    if (holds) entries.push_back({found->d_name, *holds});
  }
  if (errno != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot list ", directory));
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

absl::Status MakeDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", directory));
}

}  // namespace atelier
