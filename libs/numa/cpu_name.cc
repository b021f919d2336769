#include "libs/numa/cpu_name.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/numa/system_files.h"

namespace atelier {

std::string CpuName(const std::string& root) {
  const std::string info = ReadSystemFile(absl::StrCat(root, "/proc/cpuinfo")).value_or("");
  for (const absl::string_view line : absl::StrSplit(info, '\n')) {
    const size_t colon = line.find(": ");
    if (absl::StartsWith(line, "model name") && colon != absl::string_view::npos) {
      return std::string(line.substr(colon + 2));
    }
  }
  return "unknown";
}

}  // namespace atelier
