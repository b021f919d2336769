#include "services/gpu-frontend/engine/stop_rules.h"

#include <algorithm>

namespace atelier {

StopRules::StopRules(const SamplingOptions& options, absl::Span<const int32_t> eos_token_ids)
    : stops_(options.stop_token_ids), min_new_tokens_(options.min_new_tokens) {
  if (!options.ignore_eos) eos_.assign(eos_token_ids.begin(), eos_token_ids.end());
  std::sort(eos_.begin(), eos_.end());
  std::sort(stops_.begin(), stops_.end());
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
