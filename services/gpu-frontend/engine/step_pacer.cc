#include "services/gpu-frontend/engine/step_pacer.h"

#include <algorithm>

namespace atelier {

StepPacer::StepPacer(int max_tokens, absl::Duration max_step)
    : max_tokens_(max_tokens), max_step_(max_step) {}

int StepPacer::PromptTokens(bool shared) const {
  if (!shared || max_step_ <= absl::ZeroDuration()) return max_tokens_;
  const int least = std::min(kMinTokens, max_tokens_);
  if (tokens_ == 0) return least;
  const double affordable = absl::ToDoubleSeconds(max_step_) * tokens_;
  // Divided only where the result is an int.
  if (affordable >= seconds_ * max_tokens_) return max_tokens_;
  return std::max(least, static_cast<int>(affordable / seconds_));
}

void StepPacer::Record(int prompt_tokens, absl::Duration took) {
  if (prompt_tokens == 0) return;
  constexpr double kKeep = 0.5;
  tokens_ = tokens_ * kKeep + prompt_tokens;
  seconds_ = seconds_ * kKeep + absl::ToDoubleSeconds(took);
}

}  // namespace atelier
