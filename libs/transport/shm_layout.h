#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// The memory that a worker shares with one client, byte by byte:
//
//   control                       bells and heartbeat, a line each
//   request notices [num_slots]   which slots hold a request, in the order in which they were
//   posted reply notices   [num_slots]   which slots hold an answer, likewise slot headers
//   [num_slots]   request header, reply header, cancellation, a line each payloads [num_slots]
//   request_bytes, then reply_bytes
//
// Each side may write what it likes at any time, so nothing in here is believed: a header is copied
// once and then checked; the geometry came over the socket and is kept in private memory; who owns
// a slot is remembered in private memory.

namespace atelier {

// Two of the usual lines: some CPUs fetch pairs.
inline constexpr size_t kShmLine = 128;

struct ShmGeometry {
  uint32_t num_slots = 0;      // a power of two
  uint64_t request_bytes = 0;  // payload of one request, a multiple of 4096
  uint64_t reply_bytes = 0;    // payload of one answer, likewise
};

inline constexpr uint32_t kMaxShmSlots = 256;

// The worker counts its heartbeat up so often while it has calls; a client whose calls are in
// flight gives a worker up that has not for the longer time. The latter is generous, since a busy
// machine must not look like a dead worker; a slow one is the business of deadlines.
inline constexpr absl::Duration kShmHeartbeat = absl::Milliseconds(25);
inline constexpr absl::Duration kShmLongestSilence = absl::Seconds(1);
// After so long without a call both sides sleep until somebody has something to say.
inline constexpr absl::Duration kShmRestless = absl::Seconds(1);

// Where things begin.
struct ShmOffsets {
  uint64_t request_notices = 0;
  uint64_t reply_notices = 0;
  uint64_t headers = 0;
  uint64_t payloads = 0;
  uint64_t total = 0;
};
// INVALID_ARGUMENT names the field of a geometry that cannot be.
absl::StatusOr<ShmOffsets> ShmOffsetsOf(const ShmGeometry& geometry);

// Wakes the side that waits. `armed` is set by who is about to sleep, `word` changed by who rings.
struct alignas(kShmLine) ShmBell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> armed;
};

struct ShmControl {
  ShmBell worker_bell;
  ShmBell client_bell;
  // Counted up by the worker about every kShmHeartbeat while calls are in flight.
  alignas(kShmLine) std::atomic<uint64_t> heartbeat;
};

// One notice says that the next slot was posted: the number of the posting, counted from 1, above
// the slot's index. Who waits reads the one place where the next number must appear, so the ring
// needs neither head nor tail.
using ShmNotice = std::atomic<uint64_t>;
constexpr uint64_t MakeNotice(uint32_t number, uint32_t slot) {
  return uint64_t{number} << 32 | slot;
}

// Lengths are of the parts of the payload, which lie one after the other, each from a multiple of
// 64 bytes on: hidden [T, H] bf16, expert ids [T, k] int32, router weights [T, k] fp32, digest.
struct ShmRequestHeader {
  uint64_t epoch;
  uint64_t sequence;
  uint64_t timeout_us;  // 0 = the worker's default
  uint32_t layer;
  uint32_t num_tokens;
  uint32_t top_k;
  int32_t dtype;  // numbers of proto/atelier/v1
  int32_t output_dtype;
  int32_t priority;
  uint64_t hidden_bytes;
  uint64_t expert_ids_bytes;
  uint64_t router_weights_bytes;
  uint64_t digest_bytes;
};

// The payload is num_sums shard indices (uint32), then the sums of sum_bytes each, every part from
// a multiple of 64 bytes on; or message_bytes of text when code is not 0.
struct ShmReplyHeader {
  uint64_t epoch;
  uint64_t sequence;
  int32_t code;
  uint32_t num_sums;
  uint64_t sum_bytes;
  uint64_t message_bytes;
  uint64_t queued_us;
  uint64_t computed_us;
  uint64_t non_finite_tokens;
};

struct ShmSlotHeader {
  alignas(kShmLine) ShmRequestHeader request;
  alignas(kShmLine) ShmReplyHeader reply;
  // The sequence of the request that the client gave up.
  alignas(kShmLine) std::atomic<uint64_t> cancelled;
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(ShmRequestHeader) <= kShmLine && sizeof(ShmReplyHeader) <= kShmLine);

}  // namespace atelier
