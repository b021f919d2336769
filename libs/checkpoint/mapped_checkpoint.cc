#include "libs/checkpoint/mapped_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/checkpoint/sha256.h"

namespace atelier {
namespace {

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

 private:
  MappedContents contents_;
};

}  // namespace

absl::Status MappedContents::Add(std::string name, Entry entry) {
  const std::string& file = shards[entry.shard].file;
  const auto [at, is_new] = entries.try_emplace(std::move(name), std::move(entry));
  if (is_new) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(directory, ": tensor ", QuotedName(at->first),
                                                 " is in both ", shards[at->second.shard].file,
                                                 " and ", file));
}

std::unique_ptr<Checkpoint> MakeMappedCheckpoint(MappedContents contents) {
  return std::make_unique<MappedCheckpoint>(std::move(contents));
}

std::string FileDigest(absl::Span<const uint8_t> bytes, size_t data_begin) {
  constexpr size_t kEndBytes = 4096;
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
