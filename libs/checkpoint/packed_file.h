#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/checkpoint/packed_key.h"

namespace atelier {

// The header: text of the key, zeros, and two checksums at its end.
inline constexpr size_t kPackedHeaderBytes = 4096;

// A finished file of packed experts, mapped read-only (docs/weight-layout.md has its bytes).
// Movable, thread-safe. Data pages are read when they are used; a disk that fails then kills the
// process with SIGBUS, as does a file that others shorten: they have to be replaced by renaming.
class PackedFile {
 public:
  // Checks all of the header against `key`, its checksum, the length of the file and a sample of
  // the data: a few pages whatever the size. NOT_FOUND, PERMISSION_DENIED or another code of the
  // system; FAILED_PRECONDITION for a file of something else, naming the line that differs;
  // DATA_LOSS for one that is damaged. All name the file.
  static absl::StatusOr<PackedFile> Open(const std::string& path, const PackedKey& key);

  const PackedKey& key() const { return key_; }
  const std::string& path() const { return path_; }
  // 64-byte aligned. REQUIRES: in the key's range.
  absl::Span<const uint8_t> expert(int expert) const;
  // Reads all of an expert's bytes: DATA_LOSS when they are not those that were written.
  absl::Status VerifyExpert(int expert) const;

 private:
  PackedFile(std::string path, PackedKey key, MappedFile file)
      : path_(std::move(path)), key_(std::move(key)), file_(std::move(file)) {}
  absl::Status CheckLength() const;
  absl::Status CheckText() const;
  absl::Status CheckChecksums() const;

  std::string path_;
  PackedKey key_;
  MappedFile file_;
};

// Header and table of checksums of a file whose data is complete: the first data_offset() bytes.
std::vector<uint8_t> EncodePackedHeader(const PackedKey& key,
                                        absl::Span<const uint64_t> expert_checksums,
                                        absl::Span<const uint8_t> data);

}  // namespace atelier
