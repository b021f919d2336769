#include "libs/checkpoint/packed_file_writer.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/packed_checksum.h"
#include "libs/checkpoint/packed_directory.h"
#include "libs/checkpoint/packed_file.h"

namespace atelier {
namespace {

// Files on huge pages are a whole number of them long.
size_t PageMultiple(int fd) {
  struct statfs info = {};
  if (::fstatfs(fd, &info) != 0 || info.f_type != HUGETLBFS_MAGIC) return 1;
  return static_cast<size_t>(info.f_bsize);
}

bool SameFile(int fd, const std::string& path) {
  struct stat open = {}, named = {};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

// So that the new name survives a power cut. File systems in memory need it not and may refuse.
int SyncDirectory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  return ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

PackedFileSystem PackedFileSystem::Real() {
  PackedFileSystem system;
  system.create = [](const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd >= 0 ? fd : -errno;
  };
  system.reserve = [](int fd, size_t bytes) {
    return ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  };
  system.flush = [](void* data, size_t bytes) {
    return ::msync(data, bytes, MS_SYNC) == 0 ? 0 : errno;
  };
  system.sync = [](int fd) { return ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno; };
  return system;
}

std::string PartialName(const std::string& file_name) { return file_name + ".partial"; }

PackedFileWriter::PackedFileWriter(const std::string& directory, const PackedKey& key,
                                   const PackedFileSystem& system)
    : key_(key),
      system_(system),
      directory_(directory),
      path_(absl::StrCat(directory, "/", key.FileName())),
      partial_path_(PartialName(path_)),
      checksums_(key.num_experts()) {}

PackedFileWriter::~PackedFileWriter() {
  if (data_ != nullptr) ::munmap(data_, size_);
  // While the lock is held, so that no other process's file is met.
  if (locked_) ::unlink(partial_path_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<std::unique_ptr<PackedFileWriter>> PackedFileWriter::TryCreate(
    const std::string& directory, const PackedKey& key, const PackedFileSystem& system) {
  std::unique_ptr<PackedFileWriter> writer(new PackedFileWriter(directory, key, system));
  ATELIER_ASSIGN_OR_RETURN(const bool locked, writer->Lock());
  if (!locked) return nullptr;
  ATELIER_RETURN_IF_ERROR(writer->Map());
  return writer;
}

// Whoever had the lock before may have renamed or removed the file that was opened here: then there
// is another one to lock.
absl::StatusOr<bool> PackedFileWriter::Lock() {
  for (;;) {
    fd_ = system_.create(partial_path_);
    if (fd_ < 0) return Failed(-fd_, "create");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return false;
      return Failed(errno, "lock");
    }
    if (SameFile(fd_, partial_path_)) break;
    ::close(fd_);
    fd_ = -1;
  }
  locked_ = true;
  return true;
}

absl::Status PackedFileWriter::Map() {
  size_ = RoundUp(key_.file_bytes(), PageMultiple(fd_));
  // To nothing first: a file that is begun anew is all zeros, whatever was left in it.
  if (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
    return Failed(errno, "resize");
  }
  // Reserved, because a full disk that is noticed by a store to the mapping is a SIGBUS.
  if (const int error = system_.reserve(fd_, size_); error != 0) return Failed(error, "fill");
  void* const data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) return Failed(errno, "map");
  data_ = static_cast<uint8_t*>(data);
  return absl::OkStatus();
}

uint8_t* PackedFileWriter::expert(int expert) {
  ATELIER_DCHECK(expert >= key_.experts.begin && expert < key_.experts.end);
  return data_ + key_.data_offset() +
         static_cast<size_t>(expert - key_.experts.begin) * key_.expert_bytes;
}

void PackedFileWriter::FinishExpert(int number) {
  checksums_[static_cast<size_t>(number - key_.experts.begin)] =
      PackedChecksum({expert(number), key_.expert_bytes});
}

absl::Status PackedFileWriter::Commit() {
  const std::vector<uint8_t> header =
      EncodePackedHeader(key_, checksums_, {data_ + key_.data_offset(), key_.data_bytes()});
  std::copy(header.begin(), header.end(), data_);
  if (const int error = system_.flush(data_, size_); error != 0) return Failed(error, "write");
  if (const int error = system_.sync(fd_); error != 0) return Failed(error, "sync");
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) return Failed(errno, "rename");
  locked_ = false;
  if (const int error = SyncDirectory(directory_); error != 0) return Failed(error, "sync");
  return absl::OkStatus();
}

absl::Status PackedFileWriter::Failed(int error, absl::string_view action) const {
  const std::string what = absl::StrCat("cannot ", action, " ", partial_path_);
  if (error == ENOSPC || error == EDQUOT) {
    const absl::StatusOr<FileSystemInfo> info = InspectFileSystem(directory_);
    const std::string free = info.ok() && info->free_bytes
                                 ? absl::StrCat("where ", *info->free_bytes, " are free")
                                 : std::string("of a file system that has not so many left");
    return absl::ErrnoToStatus(error,
                               absl::StrCat(what, ", which needs ", size_, " bytes ", free,
                                            "; the files that are finished are kept and used"));
  }
  return absl::ErrnoToStatus(error, what);
}

}  // namespace atelier
