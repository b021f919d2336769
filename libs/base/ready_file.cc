#include "libs/base/ready_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

absl::Status CannotWrite(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat("--ready-file=", path, ": cannot be written: ", std::strerror(errno)));
}

}  // namespace

absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, std::string>>& facts) {
  const std::string staging = path + ".new";
  std::ofstream file(staging, std::ios::trunc);
  for (const auto& [key, value] : facts) file << key << "=" << value << "\n";
  file.close();
  if (!file.good() || std::rename(staging.c_str(), path.c_str()) != 0) return CannotWrite(path);
  return absl::OkStatus();
}

absl::Status CheckReadyFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    return CannotWrite(path);
  }
  const std::string staging = path + ".new";
  const bool written = std::ofstream(staging, std::ios::trunc).good();
  if (!written) return CannotWrite(path);
  std::remove(staging.c_str());
  return absl::OkStatus();
}

void RemoveReadyFile(const std::string& path) {
  // It may be gone already, which is what was wanted.
  [[maybe_unused]] const int result = std::remove(path.c_str());
}

}  // namespace atelier
