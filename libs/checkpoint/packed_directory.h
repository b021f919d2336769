#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/packed_key.h"

namespace atelier {

// What is known of the file system that a directory is on.
enum class StoreMedium {
  kDisk,      // pages of files are cached in memory while they are used
  kMemory,    // tmpfs: files are memory
  kHugePages  // hugetlbfs: files are memory that was set apart before
};
struct FileSystemInfo {
  StoreMedium medium = StoreMedium::kDisk;
  std::optional<int64_t> free_bytes;  // for this user; nullopt = the file system does not say
};
absl::StatusOr<FileSystemInfo> InspectFileSystem(const std::string& directory);

// The finished files of packed experts in a directory, sorted by name; none where it does not
// exist. By names only: PackedFile::Open checks what is in them.
struct PackedDirectoryEntry {
  std::string name;
  PackedFileName holds;
};
absl::StatusOr<std::vector<PackedDirectoryEntry>> ListPackedFiles(const std::string& directory);

// Creates the last component of `directory` unless it is there. Errors name it.
absl::Status MakeDirectory(const std::string& directory);

}  // namespace atelier
