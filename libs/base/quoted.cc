#include "libs/base/quoted.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace atelier {

std::string Quoted(absl::string_view text, size_t max_bytes) {
  const std::string quoted = absl::StrCat("\"", absl::CEscape(text.substr(0, max_bytes)), "\"");
  if (text.size() <= max_bytes) return quoted;
  return absl::StrCat(quoted, "... (", text.size(), " bytes)");
}

}  // namespace atelier
