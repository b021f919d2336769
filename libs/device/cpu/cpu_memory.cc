#include "libs/device/cpu/cpu_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

// The number behind `key` (empty: the file's first word) in a file of "key value" lines.
bool ReadValue(const char* path, absl::string_view key, int64_t& value) {
  std::ifstream file(path);
  std::string word;
  if (key.empty()) return file >> word && absl::SimpleAtoi(word, &value);
  while (file >> word) {
    if (word == key) return static_cast<bool>(file >> value);
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return false;
}

}  // namespace

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

int64_t FreeMemoryBytes() {
  int64_t free = std::numeric_limits<int64_t>::max();
  int64_t available_kib = 0, limit = 0, anonymous = 0;
  if (ReadValue("/proc/meminfo", "MemAvailable:", available_kib)) free = available_kib * 1024;
  // "max" there means no limit, and does not parse.
  if (ReadValue("/sys/fs/cgroup/memory.max", "", limit) &&
      ReadValue("/sys/fs/cgroup/memory.stat", "anon", anonymous)) {
    free = std::min(free, std::max<int64_t>(limit - anonymous, 0));
  }
  return free;
}

}  // namespace atelier
