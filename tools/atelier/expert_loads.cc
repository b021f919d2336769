#include "tools/atelier/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/model/config_fields.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

using nlohmann::json;

absl::Status Broken(absl::string_view file, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": expert_loads", problem));
}

absl::StatusOr<std::vector<double>> ParseCounts(const json& list, int num_experts) {
  std::vector<double> counts;
  const auto wanted = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("must be a list of ", num_experts, " numbers of at least 0"));
  };
  if (!list.is_array() || list.size() != static_cast<size_t>(num_experts)) return wanted();
  for (const json& item : list) {
    const double count = item.is_number() ? item.get<double>() : -1;
    if (!(count >= 0) || !std::isfinite(count)) return wanted();
    counts.push_back(count);
  }
  if (!std::isfinite(std::accumulate(counts.begin(), counts.end(), 0.0))) return wanted();
  return counts;
}

}  // namespace

absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view text, absl::string_view file,
                                             const ModelConfig& config) {
  ATELIER_ASSIGN_OR_RETURN(const json document, ParseJsonObject(text, file));
  const auto layers = document.find("expert_loads");
  if (layers == document.end() || !layers->is_object()) {
    return Broken(file, " must be an object with a list for each layer");
  }
  ExpertLoads loads(static_cast<size_t>(config.num_layers));
  for (const auto& [name, list] : layers->items()) {
    int layer = -1;
    const bool known = absl::SimpleAtoi(name, &layer) && layer >= 0 && layer < config.num_layers &&
                       config.is_moe_layer[static_cast<size_t>(layer)];
    if (!known) {
      return Broken(file, absl::StrCat(": ", Quoted(name), " is no layer with experts"));
    }
    absl::StatusOr<std::vector<double>> counts = ParseCounts(list, config.moe.num_experts);
    if (!counts.ok()) {
      return Broken(file, absl::StrCat(": layer ", layer, ": ", counts.status().message()));
    }
    loads[static_cast<size_t>(layer)] = *std::move(counts);
  }
  for (size_t layer = 0; layer < loads.size(); ++layer) {
    if (config.is_moe_layer[layer] && loads[layer].empty()) {
      return Broken(file, absl::StrCat(": layer ", layer, " is missing"));
    }
  }
  return loads;
}

std::vector<double> ActivationRates(const std::vector<double>& counts, const MoeConfig& moe,
                                    int batch) {
  const auto experts = static_cast<size_t>(moe.num_experts);
  std::vector<double> rates(experts, 1.0 / static_cast<double>(experts));
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (size_t expert = 0; expert < experts; ++expert) {
    if (sum > 0) rates[expert] = counts[expert] / sum;
    const double by_a_token = std::min(1.0, rates[expert] * moe.top_k);
    rates[expert] = 1 - std::pow(1 - by_a_token, batch);
  }
  return rates;
}

}  // namespace atelier
