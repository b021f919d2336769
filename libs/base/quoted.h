#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace atelier {

// Text of a peer or a user, fit for one line of a message or a log: in double quotes, control
// characters escaped, and cut to `max_bytes` of the text with the number of bytes that it had.
std::string Quoted(absl::string_view text, size_t max_bytes = 80);

}  // namespace atelier
