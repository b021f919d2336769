#include "services/gpu-frontend/api/sampling_defaults.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace atelier {

absl::StatusOr<std::string> DefaultSamplingParams(absl::string_view generation_config_json) {
  const auto config = nlohmann::json::parse(generation_config_json.begin(),
                                            generation_config_json.end(), nullptr, false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError("generation_config.json is not a JSON object");
  }
  nlohmann::json defaults = nlohmann::json::object();
  for (const char* key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}) {
    const auto value = config.find(key);
    if (value == config.end() || value->is_null()) continue;
    if (!value->is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("generation_config.json: ", key, " is not a number"));
    }
    defaults[key] = *value;
  }
  return defaults.empty() ? std::string() : defaults.dump();
}

}  // namespace atelier
