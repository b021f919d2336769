#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier::testing {

// Logits [T, vocab] of a whole sequence, computed slowly in double from libs/model/reference.h with
// nothing rounded to bf16 on the way: what every implementation approximates. Aborts on a
// checkpoint that lacks a tensor.
std::vector<float> ReferenceLogits(const Checkpoint& checkpoint, absl::Span<const int32_t> tokens);

}  // namespace atelier::testing
