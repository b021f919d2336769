#include "libs/checkpoint/packed_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/base/check.h"
#include "libs/base/quoted.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/packed_checksum.h"

namespace atelier {
namespace {

constexpr size_t kSampleChecksumAt = kPackedHeaderBytes - 16;
constexpr size_t kHeaderChecksumAt = kPackedHeaderBytes - 8;
constexpr size_t kSamplePages = 16;
constexpr size_t kSamplePageBytes = 4096;
// File systems of huge pages make files that many bytes long.
constexpr size_t kMaxPageBytes = size_t{1} << 30;

uint64_t Load64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

void Store64(uint64_t value, uint8_t* at) { std::memcpy(at, &value, sizeof(value)); }

// Pages spread evenly over the data, the first and the last among them: what a copy that was broken
// off has not written.
absl::Span<const uint8_t> SamplePage(absl::Span<const uint8_t> data, size_t i) {
  const size_t page = std::min(kSamplePageBytes, data.size());
  const size_t last = data.size() - page;
  return data.subspan(i + 1 == kSamplePages ? last : last / (kSamplePages - 1) * i, page);
}

uint64_t SampleChecksum(absl::Span<const uint8_t> data) {
  uint64_t checksums[kSamplePages];
  for (size_t i = 0; i < kSamplePages; ++i) checksums[i] = PackedChecksum(SamplePage(data, i));
  return PackedChecksum({reinterpret_cast<const uint8_t*>(checksums), sizeof(checksums)});
}

// Of everything before the data but itself.
uint64_t HeaderChecksum(absl::Span<const uint8_t> header) {
  const absl::Span<const uint8_t> table = header.subspan(kPackedHeaderBytes);
  const uint64_t parts[2] = {PackedChecksum(header.first(kHeaderChecksumAt)),
                             PackedChecksum(table)};
  return PackedChecksum({reinterpret_cast<const uint8_t*>(parts), sizeof(parts)});
}

// Advice to the kernel; one that does not take it is only slower.
void Advise(absl::Span<const uint8_t> bytes, int advice) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, " is damaged: ", what));
}

}  // namespace

std::vector<uint8_t> EncodePackedHeader(const PackedKey& key,
                                        absl::Span<const uint64_t> expert_checksums,
                                        absl::Span<const uint8_t> data) {
  ATELIER_CHECK(expert_checksums.size() == key.num_experts() && data.size() == key.data_bytes());
  std::vector<uint8_t> header(key.data_offset());
  const std::string text = key.HeaderText();
  ATELIER_CHECK(text.size() < kSampleChecksumAt);
  std::copy(text.begin(), text.end(), header.begin());
  std::memcpy(header.data() + kPackedHeaderBytes, expert_checksums.data(),
              expert_checksums.size() * sizeof(uint64_t));
  Store64(SampleChecksum(data), header.data() + kSampleChecksumAt);
  Store64(HeaderChecksum(header), header.data() + kHeaderChecksumAt);
  return header;
}

absl::StatusOr<PackedFile> PackedFile::Open(const std::string& path, const PackedKey& key) {
  ATELIER_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  PackedFile file(path, key, std::move(mapping));
  // A sampled page shall not bring megabytes along.
  Advise(file.file_.bytes(), MADV_RANDOM);
  ATELIER_RETURN_IF_ERROR(file.CheckText());
  ATELIER_RETURN_IF_ERROR(file.CheckLength());
  ATELIER_RETURN_IF_ERROR(file.CheckChecksums());
  Advise(file.file_.bytes(), MADV_NORMAL);
  // Where the page cache has the file in pieces of 2 MiB, they are mapped as such.
  Advise(file.file_.bytes(), MADV_HUGEPAGE);
  return file;
}

absl::Status PackedFile::CheckLength() const {
  const size_t size = file_.bytes().size(), wanted = key_.file_bytes();
  if (size == wanted) return absl::OkStatus();
  // A whole number of pages, of which the last is begun.
  for (size_t page = size_t{1} << 16; page <= kMaxPageBytes; page *= 2) {
    if (size > wanted && size % page == 0 && size - wanted < page) return absl::OkStatus();
  }
  return Damaged(path_, absl::StrCat("it has ", size, " bytes, not ", wanted));
}

absl::Status PackedFile::CheckText() const {
  const std::string wanted = key_.HeaderText();
  if (file_.bytes().size() < kPackedHeaderBytes) {
    return Damaged(path_, absl::StrCat("it has only ", file_.bytes().size(), " bytes"));
  }
  const auto* begin = reinterpret_cast<const char*>(file_.bytes().data());
  const absl::string_view found(begin, ::strnlen(begin, kSampleChecksumAt));
  if (found == wanted) return absl::OkStatus();
  const std::vector<absl::string_view> lines = absl::StrSplit(found, '\n');
  const std::vector<absl::string_view> wanted_lines = absl::StrSplit(wanted, '\n');
  size_t i = 0;
  while (i + 1 < std::min(lines.size(), wanted_lines.size()) && lines[i] == wanted_lines[i]) ++i;
  return absl::FailedPreconditionError(absl::StrCat(path_, " says ", Quoted(lines[i]), " where ",
                                                    Quoted(wanted_lines[i]), " is needed"));
}

absl::Status PackedFile::CheckChecksums() const {
  const absl::Span<const uint8_t> header = file_.bytes().first(key_.data_offset());
  if (Load64(header.data() + kHeaderChecksumAt) != HeaderChecksum(header)) {
    return Damaged(path_, "the checksum of its header does not fit");
  }
  const absl::Span<const uint8_t> data =
      file_.bytes().subspan(key_.data_offset(), key_.data_bytes());
  // All on their way to the disk before the first is waited for.
  for (size_t i = 0; i < kSamplePages; ++i) Advise(SamplePage(data, i), MADV_WILLNEED);
  if (Load64(header.data() + kSampleChecksumAt) != SampleChecksum(data)) {
    return Damaged(path_, "the checksum of a sample of its data does not fit");
  }
  return absl::OkStatus();
}

absl::Span<const uint8_t> PackedFile::expert(int expert) const {
  ATELIER_DCHECK(expert >= key_.experts.begin && expert < key_.experts.end);
  const auto index = static_cast<size_t>(expert - key_.experts.begin);
  return file_.bytes().subspan(key_.data_offset() + index * key_.expert_bytes, key_.expert_bytes);
}

absl::Status PackedFile::VerifyExpert(int number) const {
  const auto index = static_cast<size_t>(number - key_.experts.begin);
  const uint8_t* table = file_.bytes().data() + kPackedHeaderBytes;
  if (PackedChecksum(expert(number)) == Load64(table + index * sizeof(uint64_t))) {
    return absl::OkStatus();
  }
  return Damaged(path_, absl::StrCat("the checksum of expert ", number, " does not fit"));
}

}  // namespace atelier
