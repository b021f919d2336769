#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace atelier {

// A whole file of at most 1 MiB, such as certificates and tokens are in. Errors name it.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace atelier
