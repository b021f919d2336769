#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// The sampling options that generation_config.json recommends, as a JSON object with the keys the
// gateway reads (temperature, top_p, top_k, min_p, repetition_penalty); empty when there are none.
// INVALID_ARGUMENT when the text is no JSON object or one of the keys is no number.
absl::StatusOr<std::string> DefaultSamplingParams(absl::string_view generation_config_json);

}  // namespace atelier
