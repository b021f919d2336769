#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "proto/compat/sglang_scheduler.pb.h"
#include "services/gpu-frontend/engine/request.h"

namespace atelier {

// Largest response message we send. The gateway's decoder refuses 4 MiB; what is left is for fields
// beside the per-token ones.
inline constexpr size_t kMaxResponseBytes = (size_t{4} << 20) - (size_t{64} << 10);

// Most that a stream's log probabilities may take when its reader takes none of them.
inline constexpr size_t kMaxBacklogBytes = size_t{256} << 20;

// What one token with `top` alternatives takes in a message, at most.
constexpr size_t LogprobBytes(size_t top) { return 40 + 10 * top; }

// What mapping must know of the model.
struct MappingLimits {
  int max_context = 0;
  int64_t bos_token_id = -1;  // -1 = none
  int stream_interval = 1;    // of requests that bring none
  size_t max_response_bytes = kMaxResponseBytes;
  size_t max_backlog_bytes = kMaxBacklogBytes;
};

struct MappedRequest {
  GenerateRequest request;
  bool stream = false;
  int stream_interval = 1;  // tokens per chunk, at least; the first token never waits
};

// From the wire to the engine's request: zeros of raw clients become defaults (top_p, top_k,
// repetition_penalty, n), an empty prompt becomes the beginning-of-sequence token where the model
// has one. INVALID_ARGUMENT, naming field and value, for what this server cannot do (constraints,
// LoRA, multimodal input, embeddings as input, hidden states, disaggregation, logit processors)
// and for numbers that do not fit. Ranges of sampling options are the engine's to check. Strings in
// `stop` are ignored: the gateway, which has the tokenizer, ends the text there.
absl::StatusOr<MappedRequest> MapGenerateRequest(
    const sglang::grpc::scheduler::GenerateRequest& wire, const MappingLimits& limits);

}  // namespace atelier
