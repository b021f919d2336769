#include "libs/transport/token_file.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/base/status_macros.h"
#include "libs/transport/small_file.h"

namespace atelier {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // headers of calls are bounded too

bool IsToken(absl::string_view line) {
  return line.size() <= kMaxTokenBytes &&
         std::all_of(line.begin(), line.end(), absl::ascii_isgraph);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path) {
  ATELIER_ASSIGN_OR_RETURN(const std::string content, ReadSmallFile(path));
  std::vector<std::string> tokens;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (!IsToken(line)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " line ", number,
                                                     ": a token is at most ", kMaxTokenBytes,
                                                     " printable ASCII characters without spaces"));
    }
    tokens.emplace_back(line);
  }
  if (!tokens.empty()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token; write one per line"));
}

bool IsSameToken(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace atelier
