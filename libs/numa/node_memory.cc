#include "libs/numa/node_memory.h"

#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"

namespace atelier {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

class MappedMemory final : public NodeMemory {
 public:
  MappedMemory(void* mapping, size_t mapped_bytes, uint8_t* data, size_t size)
      : mapping_(mapping), mapped_bytes_(mapped_bytes), data_(data), size_(size) {}
  ~MappedMemory() override { ::munmap(mapping_, mapped_bytes_); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  uint8_t* data() override { return data_; }
  size_t size() const override { return size_; }

 private:
  void* mapping_;
  size_t mapped_bytes_;
  uint8_t* data_;
  size_t size_;
};

absl::Status Refused(size_t bytes, absl::string_view reason) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map ", bytes, " bytes of memory: ", reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeMemory>> MapMemory(size_t bytes) {
  // One huge page more than asked leaves room to start at a multiple of one; what is not touched
  // costs only address space.
  const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const std::optional<size_t> total = CheckedAdd(bytes, slack);
  if (!total) return Refused(bytes, "more than the address space");
  void* const mapping = ::mmap(nullptr, *total, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return Refused(bytes, std::strerror(errno));
  uintptr_t begin = reinterpret_cast<uintptr_t>(mapping);
  if (slack > 0) {
    begin = RoundUp<uintptr_t>(begin, kHugePageBytes);
    // Only advice: a system without transparent huge pages works with small ones.
    ::madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);
  }
  return std::make_unique<MappedMemory>(mapping, *total, reinterpret_cast<uint8_t*>(begin), bytes);
}

absl::Status BindToNode(NodeMemory& memory, int numa_node) {
  constexpr size_t kBitsPerWord = 8 * sizeof(unsigned long);
  const size_t node = static_cast<size_t>(numa_node);
  std::vector<unsigned long> mask(node / kBitsPerWord + 1, 0);
  mask[node / kBitsPerWord] |= 1UL << (node % kBitsPerWord);
  // The kernel takes one bit less than it is told.
  const unsigned long bits = mask.size() * kBitsPerWord + 1;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (::mbind(memory.data(), RoundUp(memory.size(), page), MPOL_BIND, mask.data(), bits, 0) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("mbind to node ", numa_node, ": ", std::strerror(errno)));
}

}  // namespace atelier
