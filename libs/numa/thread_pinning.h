#pragma once

#include <vector>

#include "absl/status/status.h"

namespace atelier {

// Restricts the calling thread to `cpus`. UNAVAILABLE with the system's reason when it is refused.
absl::Status RestrictThread(const std::vector<int>& cpus);

}  // namespace atelier
