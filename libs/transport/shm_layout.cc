#include "libs/transport/shm_layout.h"

#include <bit>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"

namespace atelier {
namespace {

constexpr uint64_t kPage = 4096;
// Far above what a worker gives, and far below where sums of lengths overflow.
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 40;

absl::Status CheckPayload(absl::string_view field, uint64_t bytes) {
  if (bytes >= kPage && bytes <= kMaxSegmentBytes && bytes % kPage == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, "=", bytes, ": must be a multiple of ",
                                                 kPage, " from ", kPage, " to ", kMaxSegmentBytes));
}

}  // namespace

absl::StatusOr<ShmOffsets> ShmOffsetsOf(const ShmGeometry& geometry) {
  if (geometry.num_slots > kMaxShmSlots || !std::has_single_bit(geometry.num_slots)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_slots=", geometry.num_slots, ": must be a power of two up to ", kMaxShmSlots));
  }
  for (const auto& [field, bytes] : {std::pair("request_bytes", geometry.request_bytes),
                                     {"reply_bytes", geometry.reply_bytes}}) {
    if (absl::Status status = CheckPayload(field, bytes); !status.ok()) return status;
  }
  const uint64_t slots = geometry.num_slots;
  const uint64_t notices = RoundUp<uint64_t>(slots * sizeof(ShmNotice), kShmLine);
  ShmOffsets offsets;
  offsets.request_notices = sizeof(ShmControl);
  offsets.reply_notices = offsets.request_notices + notices;
  offsets.headers = offsets.reply_notices + notices;
  offsets.payloads = RoundUp(offsets.headers + slots * sizeof(ShmSlotHeader), kPage);
  const std::optional<uint64_t> payloads =
      CheckedMul(slots, geometry.request_bytes + geometry.reply_bytes);
  const std::optional<uint64_t> total =
      payloads.has_value() ? CheckedAdd(offsets.payloads, *payloads) : std::nullopt;
  if (!total.has_value() || *total > kMaxSegmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        slots, " slots of request_bytes=", geometry.request_bytes,
        " and reply_bytes=", geometry.reply_bytes, " exceed ", kMaxSegmentBytes, " bytes"));
  }
  offsets.total = *total;
  return offsets;
}

}  // namespace atelier
