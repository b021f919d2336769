#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "libs/base/float16.h"
#include "libs/model/activation_form.h"

namespace atelier {

// Rows of hidden states on their way to the experts. A view: the owner keeps the memory unchanged
// until the call ends. The last num_quantized of the T rows, all or none of a single call, are
// given as QuantizeRow makes them, the others in bf16.
struct TokenBatch {
  int num_tokens = 0;              // T
  int hidden_size = 0;             // H
  const BFloat16* rows = nullptr;  // [T - num_quantized, H], row stride = H

  int num_quantized = 0;
  ActivationForm quantized_form = ActivationForm::kBf16;
  const int8_t* codes = nullptr;  // [num_quantized, H]
  const float* scales = nullptr;  // [num_quantized, ScalesPerRow(quantized_form, H)]
};

// Which experts each token goes to, and with what weight. A view, as TokenBatch.
struct Routing {
  int num_tokens = 0;                   // T
  int top_k = 0;                        // k
  const int32_t* expert_ids = nullptr;  // [T, k]; negative = skip
  const float* weights = nullptr;       // [T, k]; scaling factors folded in
};

// INVALID_ARGUMENT naming token, position and value when an id is >= num_experts, or the sizes
// disagree.
absl::Status ValidateRouting(const TokenBatch& batch, const Routing& routing, int num_experts);

}  // namespace atelier
