#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// The tokens of a file: one a line, printable ASCII without spaces; empty lines and those that
// begin with # are skipped. Errors name the file, never a token.
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path);

// In a time that does not tell how much of it was right.
bool IsSameToken(absl::string_view a, absl::string_view b);

}  // namespace atelier
