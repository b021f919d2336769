#include "libs/model/expert_set.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/model/shard.h"

namespace atelier {
namespace {

// "7" or "3-7".
absl::StatusOr<ExpertRange> ParseItem(absl::string_view item, int num_experts) {
  item = absl::StripAsciiWhitespace(item);
  const bool single = item.find('-') == absl::string_view::npos;
  const absl::StatusOr<ExpertRange> range =
      ParseExpertRange(single ? absl::StrCat(item, "-", item) : std::string(item));
  if (!range.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(item), " is neither an expert nor a range a-b"));
  }
  if (range->end > num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(item), ": the model has experts 0-", num_experts - 1));
  }
  return *range;
}

absl::StatusOr<int> ParseLayer(absl::string_view text, const ModelConfig& config) {
  int layer = 0;
  const bool is_moe = absl::SimpleAtoi(text, &layer) && layer >= 0 && layer < config.num_layers &&
                      config.is_moe_layer[static_cast<size_t>(layer)];
  if (is_moe) return layer;
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text), " is no layer with experts of the model"));
}

// "3: 0-7,12".
absl::Status ParseLine(absl::string_view line, const ModelConfig& config,
                       std::vector<std::vector<bool>>& by_layer) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ':');
  if (fields.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(line), " is not LAYER: EXPERTS, for example 3: 0-7,12"));
  }
  ATELIER_ASSIGN_OR_RETURN(const int layer,
                           ParseLayer(absl::StripAsciiWhitespace(fields[0]), config));
  std::vector<bool>& skipped = by_layer[static_cast<size_t>(layer)];
  if (!skipped.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " comes twice"));
  }
  skipped.resize(static_cast<size_t>(config.moe.num_experts));
  for (const absl::string_view item : absl::StrSplit(fields[1], ',')) {
    ATELIER_ASSIGN_OR_RETURN(const ExpertRange range, ParseItem(item, config.moe.num_experts));
    for (int expert = range.begin; expert < range.end; ++expert) {
      skipped[static_cast<size_t>(expert)] = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertSet> ExpertSet::Parse(absl::string_view text, const ModelConfig& config) {
  ExpertSet skipped;
  skipped.by_layer_.resize(static_cast<size_t>(config.num_layers));
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Status status = ParseLine(line, config, skipped.by_layer_);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return skipped;
}

bool ExpertSet::Contains(int layer, int expert) const {
  return static_cast<size_t>(layer) < by_layer_.size() &&
         static_cast<size_t>(expert) < by_layer_[static_cast<size_t>(layer)].size() &&
         by_layer_[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
}

int ExpertSet::Count(int layer, int begin, int end) const {
  int count = 0;
  for (int expert = begin; expert < end; ++expert) count += Contains(layer, expert) ? 1 : 0;
  return count;
}

}  // namespace atelier
