#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libs/transport/worker_protocol.h"
#include "proto/atelier/v1/expert.pb.h"

// What every transport checks of a request that a peer sent, before it touches a tensor.

namespace atelier {

// What a request's shapes are checked against.
struct ForwardShape {
  int hidden_size = 0;                                    // H
  int num_experts = 0;                                    // E
  int max_tokens_per_call = 0;                            // T may be 0 … this
  ActivationForm quantized_rows = ActivationForm::kBf16;  // also taken; kBf16 = none is
};

// All but the tensors and the digest, as a peer sent it; dtypes and priority by the numbers of
// proto/atelier/v1.
struct ForwardFields {
  uint64_t id = 0;
  uint64_t epoch = 0;
  uint32_t layer = 0;
  uint32_t num_tokens = 0;
  uint32_t top_k = 0;
  int dtype = 0;
  int output_dtype = 0;
  int priority = 0;
  size_t hidden_bytes = 0;
  size_t expert_ids_bytes = 0;
  size_t router_weights_bytes = 0;
  size_t hidden_scales_bytes = 0;
};

// REQUIRES: kF32 or kBF16.
v1::DType WireDType(DType dtype);
v1::DType WireDType(ActivationForm form);

// The request without its tensors; sizes and form of batch and routing are set. INVALID_ARGUMENT
// names the field and the value.
absl::StatusOr<ForwardRequest> CheckForwardFields(const ForwardFields& fields,
                                                  const ForwardShape& shape);

// `timeout_us` as a duration that can be added to any time of day; `default_timeout` where it is 0.
absl::Duration RequestTimeout(uint64_t timeout_us, absl::Duration default_timeout);

// What a peer measured; a number that is none becomes the largest.
absl::Duration DurationOfMicros(uint64_t micros);

// OK when `bytes` is num_tokens x hidden_size x the dtype's bytes; INTERNAL names `shard`.
absl::Status CheckSumBytes(uint64_t shard, size_t bytes, int num_tokens, int hidden_size,
                           DType dtype);

}  // namespace atelier
