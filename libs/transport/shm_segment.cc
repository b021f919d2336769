#include "libs/transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"

namespace atelier {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
// Not in the headers of glibc 2.36's kernel; older kernels answer EINVAL.
constexpr int kPopulateWrite = 23;         // MADV_POPULATE_WRITE
constexpr unsigned kHuge2MiB = 21u << 26;  // MFD_HUGE_2MB
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status Refused(absl::string_view call, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot share ", bytes, " bytes of memory: ", call, ": ", std::strerror(errno)));
}

// A sealed memfd of `bytes`.
absl::StatusOr<int> MakeFile(uint64_t bytes, unsigned flags) {
  const int fd = ::memfd_create("atelier-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd < 0) return Refused("memfd_create", bytes);
  const bool made = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0;
  if (made) return fd;
  absl::Status refused = Refused("memfd", bytes);
  ::close(fd);
  return refused;
}

// A page taken away, or a file cut short, would be a SIGBUS here whenever it is touched.
absl::Status CheckFile(int fd, uint64_t bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("fstat: ", std::strerror(errno)));
  }
  if (static_cast<uint64_t>(status.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", status.st_size, " bytes, its slots need ", bytes));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError("can still be made smaller by the other side");
  }
  return absl::OkStatus();
}

}  // namespace

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) ::munmap(data_, mapped_bytes_);
  ::close(fd_);
}

absl::Status ShmSegment::Map(uint64_t mapped_bytes) {
  void* const data = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) return Refused("mmap", mapped_bytes);
  data_ = static_cast<uint8_t*>(data);
  mapped_bytes_ = mapped_bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ShmSegment>> ShmSegment::Create(const ShmGeometry& geometry,
                                                               const ShmPlacement& placement) {
  ATELIER_ASSIGN_OR_RETURN(const ShmOffsets offsets, ShmOffsetsOf(geometry));
  const uint64_t huge_bytes = RoundUp(offsets.total, kHugePageBytes);
  if (placement.huge_pages_free && placement.huge_pages_free(huge_bytes)) {
    const absl::StatusOr<int> fd = MakeFile(huge_bytes, MFD_HUGETLB | kHuge2MiB);
    if (fd.ok()) {
      std::shared_ptr<ShmSegment> segment(new ShmSegment(*fd, geometry, offsets));
      if (segment->Map(huge_bytes).ok()) {
        if (placement.bind) placement.bind(segment->data_, huge_bytes);
        // All of them now, where the kernel answers: later it would be a SIGBUS.
        if (::madvise(segment->data_, huge_bytes, kPopulateWrite) == 0) return segment;
      }
    }
  }
  ATELIER_ASSIGN_OR_RETURN(const int fd, MakeFile(offsets.total, 0));
  std::shared_ptr<ShmSegment> segment(new ShmSegment(fd, geometry, offsets));
  ATELIER_RETURN_IF_ERROR(segment->Map(offsets.total));
  // Only advice, which most systems do not take for shared memory.
  ::madvise(segment->data_, offsets.total, MADV_HUGEPAGE);
  if (placement.bind) placement.bind(segment->data_, offsets.total);
  return segment;
}

absl::StatusOr<std::shared_ptr<ShmSegment>> ShmSegment::Open(int fd, const ShmGeometry& geometry) {
  const absl::StatusOr<ShmOffsets> offsets = ShmOffsetsOf(geometry);
  std::shared_ptr<ShmSegment> segment(
      new ShmSegment(fd, geometry, offsets.ok() ? *offsets : ShmOffsets()));
  ATELIER_RETURN_IF_ERROR(offsets.status());
  ATELIER_RETURN_IF_ERROR(CheckFile(fd, offsets->total));
  struct stat status {};
  ::fstat(fd, &status);
  // Of the file's own size: huge pages are mapped whole.
  ATELIER_RETURN_IF_ERROR(segment->Map(static_cast<uint64_t>(status.st_size)));
  return segment;
}

}  // namespace atelier
