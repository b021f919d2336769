#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier::testing {

// Logits [T, vocab] of a whole sequence, computed slowly in double from libs/model/reference.h with
// nothing rounded to bf16 on the way: what every implementation approximates. Aborts on a
// checkpoint that lacks a tensor.
std::vector<float> ReferenceLogits(const Checkpoint& checkpoint, absl::Span<const int32_t> tokens);

// The same with the experts that an implementation chose, so that a near tie in a router, which any
// rounding may tip, is told apart from an error: an expert that the reference would not have chosen
// must be nearly as good as one that it would have.
struct ForcedLogits {
  std::vector<float> logits;  // [T, vocab]
  // Largest difference, over tokens and layers, between the value of the worst expert that the
  // reference would choose and of the worst that was chosen, as a fraction of the spread of the
  // values that the router compares there. 0 = the same choices.
  double worst_choice = 0;
};
// The chosen ids of (layer, token), [top_k].
using ChosenExperts = std::function<absl::Span<const int32_t>(int layer, size_t token)>;
ForcedLogits ReferenceLogitsForChoices(const Checkpoint& checkpoint,
                                       absl::Span<const int32_t> tokens,
                                       const ChosenExperts& chosen);

}  // namespace atelier::testing
