#include "libs/numa/node_memory.h"

#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/numa/system_files.h"

namespace atelier {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
// Not in the headers of glibc 2.36's kernel; older kernels answer EINVAL.
constexpr int kPopulateRead = 22;    // MADV_POPULATE_READ
constexpr int kPopulateWrite = 23;   // MADV_POPULATE_WRITE
constexpr int kHuge2MiB = 21 << 26;  // MAP_HUGE_2MB

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

int BindWith(void* data, size_t bytes, int numa_node, unsigned flags) {
  constexpr size_t kBitsPerWord = 8 * sizeof(unsigned long);
  const size_t node = static_cast<size_t>(numa_node);
  std::vector<unsigned long> mask(node / kBitsPerWord + 1, 0);
  mask[node / kBitsPerWord] |= 1UL << (node % kBitsPerWord);
  // The kernel takes one bit less than it is told.
  const unsigned long bits = mask.size() * kBitsPerWord + 1;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<int>(::mbind(data, RoundUp(bytes, page), MPOL_BIND, mask.data(), bits, flags));
}

int Bind(void* data, size_t bytes, int numa_node) { return BindWith(data, bytes, numa_node, 0); }

// Before the pages are touched.
void BindPages(NodeMemory& memory, int node, const MemorySystem& system,
               const std::function<void(const absl::Status&)>& refused) {
  if (node < 0 || system.bind(memory.data(), memory.size(), node) == 0) return;
  refused(absl::UnavailableError(absl::StrCat("mbind to node ", node, ": ", std::strerror(errno))));
}

// Null when there are not enough. The pages are touched here, where the kernel answers: later,
// another process having been faster would be a SIGBUS.
std::unique_ptr<NodeMemory> MapReserved(
    const NodeBytes& wanted, const MemorySystem& system,
    const std::function<void(const absl::Status&)>& binding_refused) {
  if (wanted.bytes < kHugePageBytes || wanted.bytes > SIZE_MAX - kHugePageBytes) return nullptr;
  const size_t total = RoundUp(wanted.bytes, kHugePageBytes);
  const auto pages = static_cast<int64_t>(total / kHugePageBytes);
  if (FreeHugePages(wanted.bind_node, system.root) < pages) return nullptr;
  void* const mapping = system.map(total, MAP_HUGETLB | kHuge2MiB);
  if (mapping == MAP_FAILED) return nullptr;
  auto memory =
      std::make_unique<MappedMemory>(mapping, total, static_cast<uint8_t*>(mapping), wanted.bytes);
  BindPages(*memory, wanted.bind_node, system, binding_refused);
  if (system.populate(mapping, total) != 0) return nullptr;
  return memory;
}

absl::StatusOr<std::unique_ptr<NodeMemory>> MapOrdinary(size_t bytes, const MemorySystem& system) {
  // One huge page more than asked leaves room to start at a multiple of one; what is not touched
  // costs only address space.
  const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const std::optional<size_t> total = CheckedAdd(bytes, slack);
  if (!total) return Refused(bytes, "more than the address space");
  void* const mapping = system.map(*total, MAP_NORESERVE);
  if (mapping == MAP_FAILED) return Refused(bytes, std::strerror(errno));
  uintptr_t begin = reinterpret_cast<uintptr_t>(mapping);
  if (slack > 0) {
    begin = RoundUp<uintptr_t>(begin, kHugePageBytes);
    // Only advice: a system without transparent huge pages works with small ones.
    ::madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);
  }
  return std::make_unique<MappedMemory>(mapping, *total, reinterpret_cast<uint8_t*>(begin), bytes);
}

}  // namespace

MemorySystem MemorySystem::Real() {
  MemorySystem system;
  system.map = [](size_t bytes, int flags) {
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
                  0);
  };
  system.populate = [](void* data, size_t bytes) { return ::madvise(data, bytes, kPopulateWrite); };
  system.bind = Bind;
  return system;
}

absl::StatusOr<std::unique_ptr<NodeMemory>> AllocateOnNode(
    const NodeBytes& wanted, const MemorySystem& system,
    const std::function<void(const absl::Status&)>& binding_refused) {
  if (wanted.bytes == 0) return absl::InvalidArgumentError("bytes=0: nothing to allocate");
  if (auto reserved = MapReserved(wanted, system, binding_refused)) return reserved;
  absl::StatusOr<std::unique_ptr<NodeMemory>> memory = MapOrdinary(wanted.bytes, system);
  if (memory.ok()) BindPages(**memory, wanted.bind_node, system, binding_refused);
  return memory;
}

absl::Status PageInOnNode(const uint8_t* data, const NodeBytes& wanted,
                          const std::function<void(const absl::Status&)>& move_refused) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const size_t bytes = RoundUp(reinterpret_cast<uintptr_t>(data) + wanted.bytes, page) - begin;
  if (::madvise(reinterpret_cast<void*>(begin), bytes, kPopulateRead) != 0) {
    // An older kernel: a page that cannot be read is then a SIGBUS, as it is in use.
    if (errno != EINVAL) {
      return absl::DataLossError(
          absl::StrCat("cannot read ", bytes, " bytes of a mapped file: ", std::strerror(errno)));
    }
    volatile uint8_t sink = 0;
    for (uintptr_t at = begin; at < begin + bytes; at += page) {
      sink = *reinterpret_cast<const volatile uint8_t*>(at);
    }
    static_cast<void>(sink);
  }
  if (wanted.bind_node >= 0 &&
      BindWith(reinterpret_cast<void*>(begin), bytes, wanted.bind_node, MPOL_MF_MOVE) != 0) {
    move_refused(absl::UnavailableError(
        absl::StrCat("mbind to node ", wanted.bind_node, ": ", std::strerror(errno))));
  }
  return absl::OkStatus();
}

int64_t FreeHugePages(int node, const std::string& root) {
  const std::string folder =
      node < 0 ? std::string("/sys/kernel/mm/hugepages")
               : absl::StrCat("/sys/devices/system/node/node", node, "/hugepages");
  const std::optional<std::string> text =
      ReadSystemFile(absl::StrCat(root, folder, "/hugepages-2048kB/free_hugepages"));
  int64_t free = 0;
  if (!text || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &free)) return 0;
  return free;
}

}  // namespace atelier
