#include "libs/base/ready_file.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "libs/base/whole_file.h"

namespace atelier {
namespace {

absl::Status NameFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--ready-file=", path, ": ", status.message()));
}

}  // namespace

absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string text;
  for (const auto& [key, value] : facts) absl::StrAppend(&text, key, "=", value, "\n");
  return NameFile(path, WriteWholeFile(path, text));
}

absl::Status CheckReadyFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status replaceable = CheckReplaceable(path);
  return NameFile(path, replaceable.ok() ? CheckFolderWritable(path) : replaceable);
}

void RemoveReadyFile(const std::string& path) {
  // It may be gone already, which is what was wanted.
  [[maybe_unused]] const int result = std::remove(path.c_str());
}

}  // namespace atelier
