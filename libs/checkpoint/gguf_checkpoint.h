#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier {

// Checkpoint::Open of a file.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& path);

}  // namespace atelier
