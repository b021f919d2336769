#include "services/gpu-frontend/engine/stop_rules.h"

#include <algorithm>
#include <iterator>

namespace atelier {
namespace {

std::vector<int32_t> SortedOnce(absl::Span<const int32_t> ids) {
  std::vector<int32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

}  // namespace

StopRules::StopRules(const SamplingOptions& options, absl::Span<const int32_t> eos_token_ids)
    : stops_(SortedOnce(options.stop_token_ids)), min_new_tokens_(options.min_new_tokens) {
  if (!options.ignore_eos) eos_ = SortedOnce(eos_token_ids);
  std::set_union(eos_.begin(), eos_.end(), stops_.begin(), stops_.end(), std::back_inserter(all_));
}

StopRules::Verdict StopRules::Judge(int32_t token) const {
  if (std::binary_search(eos_.begin(), eos_.end(), token)) return Verdict::kEndOfSequence;
  if (std::binary_search(stops_.begin(), stops_.end(), token)) return Verdict::kStopToken;
  return Verdict::kContinue;
}

absl::Span<const int32_t> StopRules::Forbidden(int num_output) const {
  return num_output < min_new_tokens_ ? absl::MakeConstSpan(all_) : absl::Span<const int32_t>();
}

}  // namespace atelier
