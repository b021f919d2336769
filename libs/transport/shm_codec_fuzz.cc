#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "libs/base/check.h"
#include "libs/transport/shm_codec.h"
#include "libs/transport/shm_frames.h"

// Takes the input for a slot that a peer filled: a header and a payload, which both readers get in
// memory of exactly that size, so that AddressSanitizer sees a byte too many. Reads all that a
// value says it has. Corpus: testdata/shm_fuzz_corpus, which also runs as a unit test.

namespace atelier {
namespace {

constexpr ForwardShape kShape{/*hidden_size=*/4, /*num_experts=*/8, /*max_tokens_per_call=*/16};

template <typename Header>
struct Slot {
  Header header{};
  std::shared_ptr<uint8_t[]> payload;
  size_t size = 0;
};

template <typename Header>
Slot<Header> SlotOf(const uint8_t* data, size_t size) {
  Slot<Header> slot;
  const size_t head = std::min(size, sizeof(Header));
  if (head > 0) std::memcpy(&slot.header, data, head);
  slot.size = size - head;
  slot.payload = std::shared_ptr<uint8_t[]>(new uint8_t[slot.size]);
  if (slot.size > 0) std::memcpy(slot.payload.get(), data + head, slot.size);
  return slot;
}

void ReadAsRequest(const uint8_t* data, size_t size) {
  const auto slot = SlotOf<ShmRequestHeader>(data, size);
  const absl::StatusOr<ForwardRequest> request =
      ReadShmRequest(slot.header, {slot.payload.get(), slot.size}, kShape, slot.payload);
  ATELIER_CHECK(RequestTimeout(slot.header.timeout_us, absl::Seconds(1)) > absl::ZeroDuration());
  if (!request.ok()) return;
  ATELIER_CHECK(request->batch.num_tokens >= 0 && request->batch.num_tokens <= 16);
  uint64_t bits = request->model_digest.size();
  for (int i = 0; i < request->batch.num_tokens * kShape.hidden_size; ++i) {
    uint16_t value = 0;  // as the kernels read it: at any address
    std::memcpy(&value, reinterpret_cast<const uint8_t*>(request->batch.rows) + 2 * i, 2);
    bits += value;
  }
  for (int i = 0; i < request->batch.num_tokens * request->routing.top_k; ++i) {
    ATELIER_CHECK(request->routing.expert_ids[i] < kShape.num_experts);
    bits += request->routing.weights[i] > 0 ? 1 : 0;
  }
  [[maybe_unused]] const volatile uint64_t sink = bits;
}

void ReadAsReply(const uint8_t* data, size_t size) {
  const auto slot = SlotOf<ShmReplyHeader>(data, size);
  const ForwardReply reply =
      ReadShmReply(slot.header, {slot.payload.get(), slot.size}, {{0, 2}, 2, 4, DType::kF32});
  ATELIER_CHECK(reply.sums.size() == (reply.status.ok() ? 2u : 0u));
  for (const ShardSum& sum : reply.sums) ATELIER_CHECK(sum.data.size() == 32);
}

void ReadAsOpening(const uint8_t* data, size_t size) {
  const absl::StatusOr<ShmOpening> opening =
      DecodeOpening({reinterpret_cast<const char*>(data), size});
  if (!opening.ok()) return;
  const absl::StatusOr<ShmOffsets> offsets = ShmOffsetsOf(opening->geometry);
  if (!offsets.ok()) return;
  const ShmGeometry& g = opening->geometry;
  ATELIER_CHECK(offsets->total - offsets->payloads ==
                g.num_slots * (g.request_bytes + g.reply_bytes));
  ATELIER_CHECK(offsets->headers + g.num_slots * sizeof(ShmSlotHeader) <= offsets->payloads);
}

}  // namespace
}  // namespace atelier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atelier::ReadAsRequest(data, size);
  atelier::ReadAsReply(data, size);
  atelier::ReadAsOpening(data, size);
  return 0;
}
