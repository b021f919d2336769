#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/transport/forward_fields.h"
#include "libs/transport/worker_protocol.h"
#include "proto/atelier/v1/control.pb.h"
#include "proto/atelier/v1/expert.pb.h"

// Between the generated messages and the values of worker_protocol.h. Peers are not trusted: every
// length is checked with overflow-safe maths before the memory behind it is touched, and a message
// names the field and the values.

namespace atelier {

// Views into `message`, which the result keeps (a tensor whose bytes are misaligned is copied).
// `deadline` is left infinite: see RequestTimeout. INVALID_ARGUMENT otherwise.
absl::StatusOr<ForwardRequest> DecodeForwardRequest(
    std::shared_ptr<const v1::ForwardRequest> message, const ForwardShape& shape);

// timeout_us, or `default_timeout` where there is none.
absl::Duration RequestTimeout(const v1::ForwardRequest& message, absl::Duration default_timeout);

// Takes the reply's buffers. A failed reply carries no sums.
void EncodeForwardReply(uint64_t id, ForwardReply reply, v1::ForwardResponse* message);

// What the answer to a request must hold.
struct ExpectedSums {
  std::vector<int> shards;  // indices into WorkerDescription::shards: each exactly once
  int num_tokens = 0;
  int hidden_size = 0;
  DType output_dtype = DType::kF32;
};

// Takes the message's buffers; sums come in the order of `expected.shards`. The reply's status is
// the worker's own, or INTERNAL when the message does not fit `expected`.
ForwardReply DecodeForwardReply(v1::ForwardResponse message, const ExpectedSums& expected);

void EncodeDescription(const WorkerDescription& description, v1::DescribeResponse* message);
// INTERNAL names the field and the value that no worker may send.
absl::StatusOr<WorkerDescription> DecodeDescription(const v1::DescribeResponse& message);

// Shards of a request, of a model with so many experts a layer. INVALID_ARGUMENT likewise.
using WireShards = google::protobuf::RepeatedPtrField<v1::Shard>;
absl::StatusOr<std::vector<ShardSpec>> DecodeShards(const WireShards& shards, uint32_t num_experts);

}  // namespace atelier
