#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "libs/model/expert_set.h"

namespace atelier {

// The experts that a file names, in ExpertSet's form. Errors of opening it, INVALID_ARGUMENT
// beyond 4 MiB, and ExpertSet::Parse's, which name the line.
absl::StatusOr<ExpertSet> ReadExpertSet(const std::string& path, const ModelConfig& config);

}  // namespace atelier
