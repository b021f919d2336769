#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace atelier {

// A name from a file, quoted, escaped and cut short for a message.
inline std::string QuotedName(absl::string_view name) {
  constexpr size_t kMaxShown = 200;
  return absl::StrCat("\"", absl::Utf8SafeCEscape(name.substr(0, kMaxShown)),
                      name.size() > kMaxShown ? "..." : "", "\"");
}

}  // namespace atelier
