#include "libs/transport/small_file.h"

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content(kMaxBytes + 1, '\0');
  const bool opened = file.is_open();
  if (opened) file.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (!opened || file.bad()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  content.resize(static_cast<size_t>(file.gcount()));
  if (content.size() <= kMaxBytes) return content;
  return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 MiB"));
}

}  // namespace atelier
