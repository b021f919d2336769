#pragma once

#include "absl/status/statusor.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier {

// What a request is held against; from the model, the KV cache and the engine's options.
struct RequestLimits {
  int vocab_size = 0;
  int max_context = 0;             // tokens of prompt and output
  int kv_capacity = 0;             // tokens that fit into the KV cache
  int max_new_tokens_default = 0;  // 0 = the room left

  int max_sequence_tokens() const { return max_context < kv_capacity ? max_context : kv_capacity; }
};

// OK, or INVALID_ARGUMENT that names field, value and limit. UNIMPLEMENTED for
// LogprobOptions::token_ids.
absl::Status ValidateRequest(const GenerateRequest& request, const RequestLimits& limits);

// Output tokens a valid request may have: what it asks for, at most the room left.
int MaxNewTokens(const GenerateRequest& request, const RequestLimits& limits);

}  // namespace atelier
