#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/transport/shm_layout.h"

namespace atelier {

// Where a worker's side of the memory comes from. Null functions = wherever the kernel likes.
struct ShmPlacement {
  // Whether so many bytes of reserved huge pages (2 MiB) are free.
  std::function<bool(size_t bytes)> huge_pages_free;
  // Binds fresh pages to the worker's node, before they are touched. What it cannot do is its own
  // to report.
  std::function<void(void* data, size_t bytes)> bind;
};

// The memory of ShmGeometry, mapped. Its size cannot change while anybody holds it. The accessors
// check nothing: slot < num_slots. Thread-safe.
class ShmSegment {
 public:
  // Fresh and zeroed. RESOURCE_EXHAUSTED when the kernel refuses.
  static absl::StatusOr<std::shared_ptr<ShmSegment>> Create(const ShmGeometry& geometry,
                                                            const ShmPlacement& placement);
  // What a worker sent. INVALID_ARGUMENT when `fd` is not such memory: another size, or a size that
  // the other side could still change. Closes `fd` in any case.
  static absl::StatusOr<std::shared_ptr<ShmSegment>> Open(int fd, const ShmGeometry& geometry);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  const ShmGeometry& geometry() const { return geometry_; }
  int fd() const { return fd_; }

  ShmControl& control() { return *At<ShmControl>(0); }
  // The place where the posting of that number is announced.
  ShmNotice& request_notice(uint32_t number) { return Notice(offsets_.request_notices, number); }
  ShmNotice& reply_notice(uint32_t number) { return Notice(offsets_.reply_notices, number); }
  ShmSlotHeader& header(uint32_t slot) {
    return *At<ShmSlotHeader>(offsets_.headers + slot * sizeof(ShmSlotHeader));
  }
  absl::Span<uint8_t> request_payload(uint32_t slot) {
    return {At<uint8_t>(PayloadOffset(slot)), geometry_.request_bytes};
  }
  absl::Span<uint8_t> reply_payload(uint32_t slot) {
    return {At<uint8_t>(PayloadOffset(slot) + geometry_.request_bytes), geometry_.reply_bytes};
  }

 private:
  ShmSegment(int fd, const ShmGeometry& geometry, const ShmOffsets& offsets)
      : fd_(fd), geometry_(geometry), offsets_(offsets) {}

  absl::Status Map(uint64_t mapped_bytes);
  uint64_t PayloadOffset(uint32_t slot) const {
    return offsets_.payloads + slot * (geometry_.request_bytes + geometry_.reply_bytes);
  }
  ShmNotice& Notice(uint64_t offset, uint32_t number) {
    return *At<ShmNotice>(offset + number % geometry_.num_slots * sizeof(ShmNotice));
  }
  template <typename T>
  T* At(uint64_t offset) {
    return reinterpret_cast<T*>(data_ + offset);
  }

  const int fd_;
  const ShmGeometry geometry_;
  const ShmOffsets offsets_;
  uint8_t* data_ = nullptr;
  uint64_t mapped_bytes_ = 0;
};

// One reading of what the other side may be rewriting: a copy that no later check can differ from.
template <typename T>
T ReadOnce(const T& shared) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0 && std::is_trivially_copyable_v<T>);
  T copy;
  const auto* from = reinterpret_cast<const uint64_t*>(&shared);
  auto* to = reinterpret_cast<uint64_t*>(&copy);
  for (size_t i = 0; i < sizeof(T) / sizeof(uint64_t); ++i) {
    to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
  }
  return copy;
}

}  // namespace atelier
