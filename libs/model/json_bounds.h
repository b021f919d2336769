#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace atelier {

struct JsonLimits {
  size_t max_depth;
  size_t max_token_bytes;  // of a string, a number, or blanks between them
};

// Run over a text from a file before a JSON parser sees it: parsers keep whole tokens in memory,
// trees grow with the nesting, and the one we use takes a zero byte for the end. INVALID_ARGUMENT
// naming `file` and the byte. Says nothing of whether the text is JSON. O(bytes), no allocation.
absl::Status CheckJsonBounds(absl::string_view text, const JsonLimits& limits,
                             absl::string_view file);

}  // namespace atelier
