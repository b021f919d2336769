#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"

namespace atelier {

// What a frontend with the default limits takes of its device's memory (with --device=cpu, of the
// machine's), in bytes. A plain value.
struct FrontendMemory {
  int64_t weights = 0;      // as it keeps them
  int64_t process = 0;      // about: program, libraries, headers
  int64_t workspace = 0;    // for its steps; taken by the first ones
  int64_t gpu_experts = 0;  // of routed experts that it would compute itself
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache = 0;   // what to give it as --kv-cache-bytes; taken as it fills
  int64_t kv_tokens = 0;  // that fit in there

  int64_t Resident() const { return weights + process + gpu_experts; }  // from the start
  int64_t Most() const { return Resident() + workspace + kv_cache; }
};

// With all that fits into `memory` as its KV cache; 0 = with the default --kv-cache-bytes.
// RESOURCE_EXHAUSTED, beginning with --frontend-memory, where not one block of the cache fits.
absl::StatusOr<FrontendMemory> PlanFrontendMemory(const Checkpoint& checkpoint, int64_t memory,
                                                  int64_t gpu_experts);

}  // namespace atelier
