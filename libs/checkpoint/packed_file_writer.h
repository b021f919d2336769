#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/packed_key.h"

namespace atelier {

// The system behind a PackedFileWriter; tests put failures in its place. The calls return 0 or an
// errno, `create` a descriptor or minus an errno.
struct PackedFileSystem {
  std::function<int(const std::string& path)> create;  // opens for reading and writing
  std::function<int(int fd, size_t bytes)> reserve;    // posix_fallocate
  std::function<int(void* data, size_t bytes)> flush;  // msync
  std::function<int(int fd)> sync;                     // fsync

  static PackedFileSystem Real();
};

// Makes one file of packed experts: under another name, which is also the lock that keeps other
// processes from the same work and that ends with this process however it ends; renamed when every
// byte is on the disk. Without Commit nothing is left. Written through a mapping, for file systems
// that have no write() (hugetlbfs).
class PackedFileWriter {
 public:
  // Null while another process writes this file. Whatever an earlier process left unfinished is
  // dropped. RESOURCE_EXHAUSTED with the bytes needed when the disk is full, PERMISSION_DENIED when
  // it cannot be written, or another code of the system, naming the file.
  static absl::StatusOr<std::unique_ptr<PackedFileWriter>> TryCreate(
      const std::string& directory, const PackedKey& key, const PackedFileSystem& system);
  ~PackedFileWriter();
  PackedFileWriter(const PackedFileWriter&) = delete;
  PackedFileWriter& operator=(const PackedFileWriter&) = delete;

  // Zeroed, 64-byte aligned. REQUIRES: in the key's range.
  uint8_t* expert(int expert);
  // To be called once for every expert when its bytes are complete; from any thread.
  void FinishExpert(int expert);
  // Blocks until the disk has everything, then gives the file its name. Errors as TryCreate's; the
  // writer is of no use afterwards.
  absl::Status Commit();

  const std::string& path() const { return path_; }

 private:
  PackedFileWriter(const std::string& directory, const PackedKey& key,
                   const PackedFileSystem& system);
  // False while another process holds the lock.
  absl::StatusOr<bool> Lock();
  absl::Status Map();
  // What a person can do about `error`, which `action` met.
  absl::Status Failed(int error, absl::string_view action) const;

  const PackedKey key_;
  const PackedFileSystem& system_;
  const std::string directory_;
  const std::string path_;
  const std::string partial_path_;
  int fd_ = -1;
  bool locked_ = false;
  uint8_t* data_ = nullptr;  // of the whole file
  size_t size_ = 0;
  std::vector<uint64_t> checksums_;  // of each expert
};

// A name that no finished file has.
std::string PartialName(const std::string& file_name);

}  // namespace atelier
