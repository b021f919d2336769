#include "libs/checkpoint/mapped_checkpoint.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/check.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/checkpoint/sha256.h"

namespace atelier {
namespace {

constexpr size_t kEndBytes = 4096;  // of a file's data that enter its digest, at each end

class MappedCheckpoint final : public Checkpoint {
 public:
  explicit MappedCheckpoint(MappedContents contents) : contents_(std::move(contents)) {}

  const ModelConfig& config() const override { return contents_.config; }
  const std::string& directory() const override { return contents_.directory; }
  const std::string& digest() const override { return contents_.digest; }

  absl::StatusOr<TensorView> Find(absl::string_view name) const override {
    const auto found = contents_.entries.find(name);
    if (found == contents_.entries.end()) {
      return absl::NotFoundError(
          absl::StrCat("tensor ", QuotedName(name), " is in no file of ", contents_.directory));
    }
    const MappedContents::Entry& entry = found->second;
    const MappedContents::Shard& shard = contents_.shards[entry.shard];
    return TensorView{found->first, entry.dtype,
                      entry.shape,  shard.mapping.bytes().subspan(entry.begin, entry.size),
                      shard.file,   entry.blocks};
  }

  absl::StatusOr<TensorView> RequireShape(absl::string_view name,
                                          absl::Span<const int64_t> shape) const override {
    ATELIER_ASSIGN_OR_RETURN(TensorView tensor, Find(name));
    if (tensor.shape == shape) return tensor;
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.file, ": tensor ", QuotedName(name), ": shape [", absl::StrJoin(tensor.shape, ", "),
        "], but ", contents_.promised_by, " promises [", absl::StrJoin(shape, ", "), "]"));
  }

  std::vector<std::string> TensorNames() const override {
    std::vector<std::string> names;
    names.reserve(contents_.entries.size());
    for (const auto& [name, entry] : contents_.entries) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

  std::vector<CheckpointFile> Files() const override {
    std::vector<CheckpointFile> files;
    for (const MappedContents::Shard& shard : contents_.shards) {
      files.push_back({shard.file, shard.mapping.bytes(), shard.data_begin});
    }
    return files;
  }

  bool IsWhole() const override {
    return std::all_of(contents_.shards.begin(), contents_.shards.end(),
                       [](const MappedContents::Shard& shard) {
                         return !shard.fetched || shard.fetched->IsWhole();
                       });
  }

  bool IsFetched(absl::Span<const uint8_t> bytes) const override {
    const MappedContents::Shard& shard = ShardOf(bytes);
    return !shard.fetched || shard.fetched->have.Contains(RangeIn(shard, bytes));
  }

  absl::Status RequireFetched(absl::Span<const uint8_t> bytes,
                              absl::string_view role_flags) const override {
    if (IsFetched(bytes)) return absl::OkStatus();
    const MappedContents::Shard& shard = ShardOf(bytes);
    const ByteRange first = shard.fetched->have.MissingIn(RangeIn(shard, bytes)).ranges().front();
    return absl::FailedPreconditionError(
        absl::StrCat(shard.file, ": tensor ", QuotedName(TensorAt(shard, first.begin)), ": bytes ",
                     first.begin, " to ", first.end - 1, " were not fetched; run: atelier fetch ",
                     shard.fetched->source, " --dir=", Folder(), " ", role_flags));
  }

 private:
  // REQUIRES: bytes of a file of this checkpoint. An empty span may be of any.
  const MappedContents::Shard& ShardOf(absl::Span<const uint8_t> bytes) const {
    const auto holds = [bytes](const MappedContents::Shard& shard) {
      const absl::Span<const uint8_t> all = shard.mapping.bytes();
      return std::less_equal<>()(all.data(), bytes.data()) &&
             std::less_equal<>()(bytes.data() + bytes.size(), all.data() + all.size());
    };
    const auto found = std::find_if(contents_.shards.begin(), contents_.shards.end(), holds);
    ATELIER_CHECK(found != contents_.shards.end());
    return *found;
  }

  static ByteRange RangeIn(const MappedContents::Shard& shard, absl::Span<const uint8_t> bytes) {
    const auto begin = static_cast<uint64_t>(bytes.data() - shard.mapping.bytes().data());
    return {begin, begin + bytes.size()};
  }

  absl::string_view TensorAt(const MappedContents::Shard& shard, uint64_t offset) const {
    for (const auto& [name, entry] : contents_.entries) {
      const bool holds = &contents_.shards[entry.shard] == &shard && entry.begin <= offset &&
                         offset < entry.begin + entry.size;
      if (holds) return name;
    }
    return "";
  }

  // Where the files lie: GGUF checkpoints are opened by their first one.
  std::string Folder() const {
    const std::string& path = contents_.directory;
    const absl::string_view file = contents_.shards.front().file;
    if (!absl::EndsWith(path, file)) return path;
    const std::string folder = path.substr(0, path.size() - file.size());
    return folder.empty() ? "." : folder;
  }

  MappedContents contents_;
};

// A model without shared experts leaves their tensors unread: it would answer, wrongly.
absl::Status CheckSharedExperts(const MappedContents& contents) {
  if (contents.config.moe.shared_intermediate_size > 0) return absl::OkStatus();
  for (const auto& [name, entry] : contents.entries) {
    if (!absl::StrContains(name, ".mlp.shared_experts.")) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        contents.directory, ": by ", contents.promised_by,
        " the model has no shared experts (their number or width is 0 or absent), but ",
        contents.shards[entry.shard].file, " holds tensor ", QuotedName(name),
        ": one of the two is of another model"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MappedContents::Add(std::string name, Entry entry) {
  const std::string& file = shards[entry.shard].file;
  const auto [at, is_new] = entries.try_emplace(std::move(name), std::move(entry));
  if (is_new) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(directory, ": tensor ", QuotedName(at->first),
                                                 " is in both ", shards[at->second.shard].file,
                                                 " and ", file));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> MakeMappedCheckpoint(MappedContents contents) {
  ATELIER_RETURN_IF_ERROR(CheckSharedExperts(contents));
  return std::make_unique<MappedCheckpoint>(std::move(contents));
}

ByteRanges DigestedBytes(uint64_t file_size, uint64_t data_begin) {
  ByteRanges ranges;
  ranges.Add({0, std::min(data_begin + kEndBytes, file_size)});
  ranges.Add({file_size - std::min(file_size, uint64_t{kEndBytes}), file_size});
  return ranges;
}

absl::Status RequireDigestedBytes(const FetchJournal& fetched, uint64_t data_begin,
                                  absl::string_view file) {
  const ByteRanges missing = DigestedBytes(fetched.size, data_begin).Minus(fetched.have);
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(file, ": its header and the ends of its data have not come yet: run atelier ",
                   "fetch ", fetched.source, " to its end"));
}

std::string FileDigest(absl::Span<const uint8_t> bytes, size_t data_begin) {
  const absl::Span<const uint8_t> data = bytes.subspan(data_begin);
  Sha256 sha;
  sha.Add(bytes.first(data_begin));
  const std::string length = absl::StrCat(data.size());
  sha.Add({reinterpret_cast<const uint8_t*>(length.data()), length.size()});
  sha.Add(data.first(std::min(kEndBytes, data.size())));
  sha.Add(data.last(std::min(kEndBytes, data.size())));
  return sha.Finish();
}

// Sorted by content, so that the names of files do not matter.
std::string CheckpointDigest(absl::string_view config_text, std::vector<std::string> parts) {
  std::sort(parts.begin(), parts.end());
  const std::string joined = absl::StrCat(config_text, "\n", absl::StrJoin(parts, "\n"));
  Sha256 sha;
  sha.Add({reinterpret_cast<const uint8_t*>(joined.data()), joined.size()});
  return sha.Finish();
}

absl::StatusOr<TensorView> Checkpoint::Require(absl::string_view name,
                                               absl::Span<const int64_t> shape) const {
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, RequireShape(name, shape));
  if (tensor.IsFloats()) return tensor;
  return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", QuotedName(name),
                                                 ": dtype ", tensor.TypeName(),
                                                 ", but BF16, F16 or F32 is needed"));
}

absl::StatusOr<TensorView> Checkpoint::RequireReadable(absl::string_view name,
                                                       absl::Span<const int64_t> shape) const {
  ATELIER_ASSIGN_OR_RETURN(TensorView tensor, RequireShape(name, shape));
  if (tensor.blocks == nullptr) return Require(name, shape);
  if (tensor.blocks->method.has_value()) return tensor;
  return absl::UnimplementedError(
      absl::StrCat(tensor.file, ": tensor ", QuotedName(name), ": type ", tensor.TypeName(),
                   " is not supported by this build, which computes with ", ComputedGgufTypes()));
}

bool TensorView::IsFloats() const {
  return blocks == nullptr &&
         (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32);
}

absl::string_view TensorView::TypeName() const {
  return blocks == nullptr ? DTypeName(dtype) : blocks->name;
}

}  // namespace atelier
