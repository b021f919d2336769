#include "libs/model/json_bounds.h"

#include "absl/strings/str_cat.h"

namespace atelier {

absl::Status CheckJsonBounds(absl::string_view text, const JsonLimits& limits,
                             absl::string_view file) {
  const auto broken = [&](absl::string_view problem, size_t byte) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", problem, " at byte ", byte));
  };
  size_t depth = 0;
  size_t token_bytes = 0;
  bool in_string = false;
  bool escaped = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') return broken("a zero byte", i);
    if (++token_bytes > limits.max_token_bytes) return broken("an overlong token", i);
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
      continue;
    }
    if (c == '"') in_string = true;
    const bool opens = c == '{' || c == '[';
    const bool closes = c == '}' || c == ']';
    if (opens && ++depth > limits.max_depth) return broken("nesting too deep", i);
    if (closes && depth > 0) --depth;
    if (opens || closes || c == ',' || c == ':') token_bytes = 0;
  }
  return absl::OkStatus();
}

}  // namespace atelier
