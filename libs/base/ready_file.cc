#include "libs/base/ready_file.h"

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

void RemoveReadyFile(const std::string& path) {
  // It may be gone already, which is what was wanted.
  [[maybe_unused]] const int result = std::remove(path.c_str());
}

}  // namespace atelier
