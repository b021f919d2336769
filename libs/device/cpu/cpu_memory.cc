#include "libs/device/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace atelier {

absl::StatusOr<CpuMemory> CpuMemory::Allocate(size_t bytes) {
  const size_t mapped = std::max<size_t>(bytes, 1);
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes: ", std::strerror(errno)));
  }
  // Advice only: without huge pages the memory works as well, with more TLB misses.
  ::madvise(data, mapped, MADV_HUGEPAGE);
  return CpuMemory(static_cast<uint8_t*>(data), mapped);
}

CpuMemory::CpuMemory(CpuMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

CpuMemory& CpuMemory::operator=(CpuMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CpuMemory::~CpuMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace atelier
