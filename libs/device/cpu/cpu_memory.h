#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace atelier {

// Anonymous zeroed pages, given back on destruction. Movable.
class CpuMemory {
 public:
  // RESOURCE_EXHAUSTED naming the size when the kernel refuses.
  static absl::StatusOr<CpuMemory> Allocate(size_t bytes);

  CpuMemory() = default;
  CpuMemory(CpuMemory&& other) noexcept;
  CpuMemory& operator=(CpuMemory&& other) noexcept;
  ~CpuMemory();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  CpuMemory(uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// What this process can still allocate without being killed for it: the system's estimate, or the
// room below the memory limit of its cgroup (version 2) if that is less. The largest int64_t where
// the system says neither.
int64_t FreeMemoryBytes();

}  // namespace atelier
