#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace atelier {

// A regular file mapped read-only; symbolic links are followed. Movable; unmaps when destroyed.
// Thread-safe after Open. Reading a page may block on the disk. A file that others shorten while it
// is mapped kills the reader with SIGBUS: checkpoints have to be replaced by renaming, not
// overwritten.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or another code of the system's error, naming the path;
  // INVALID_ARGUMENT for what is not a regular file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // For a file that is read whole: INVALID_ARGUMENT too if it is longer than max_bytes.
  static absl::StatusOr<MappedFile> OpenSmall(const std::string& path, size_t max_bytes);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::Span<const uint8_t> bytes() const { return {data_, size_}; }
  absl::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  const uint8_t* data_ = nullptr;  // nullptr for an empty file
  size_t size_ = 0;
};

// Takes the pages of a mapped file that hold `bytes` out of this process's memory; they stay in the
// page cache as long as the kernel likes, and are mapped again when they are used. REQUIRES: no
// other memory than a mapped file's, which would lose what it holds.
void ReleasePages(absl::Span<const uint8_t> bytes);

}  // namespace atelier
