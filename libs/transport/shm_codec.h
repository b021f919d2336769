#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/transport/call_stream.h"
#include "libs/transport/codec.h"
#include "libs/transport/forward_fields.h"
#include "libs/transport/shm_layout.h"

// Calls and answers in the slots of shared memory. The readers get a header that was copied once
// (ReadOnce) and the payload's memory, which the peer may rewrite while they run: no decision is
// made twice on the same bytes.

namespace atelier {

// Room that a slot needs beside the tensors and sums: digest, shard indices, alignment.
inline constexpr int64_t kShmOverheadBytes = 4096;

// Writes the rows of `message` into a slot's payload, which is large enough (see
// CallStream::Limits), and says what belongs into its header. INVALID_ARGUMENT when the digest does
// not fit.
absl::StatusOr<ShmRequestHeader> WriteShmRequest(const CallMessage& message, uint64_t timeout_us,
                                                 absl::Span<uint8_t> payload);

// The rows are a view into `payload`, which `memory` keeps; ids and weights are copied before they
// are checked. `deadline` is left infinite.
absl::StatusOr<ForwardRequest> ReadShmRequest(const ShmRequestHeader& header,
                                              absl::Span<const uint8_t> payload,
                                              const ForwardShape& shape,
                                              std::shared_ptr<const void> memory);

// RESOURCE_EXHAUSTED instead of sums that do not fit; long messages are cut.
ShmReplyHeader WriteShmReply(const ForwardReply& reply, absl::Span<uint8_t> payload);

// As DecodeForwardReply.
ForwardReply ReadShmReply(const ShmReplyHeader& header, absl::Span<const uint8_t> payload,
                          const ExpectedSums& expected);

}  // namespace atelier
