#include "libs/checkpoint/gguf_set.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/mapped_checkpoint.h"
#include "libs/checkpoint/quoted_name.h"

namespace atelier {
namespace {

constexpr int kMaxParts = 99999;  // five digits in the name

// "model-00001-of-00003.gguf"
struct PartName {
  std::string stem;  // "model"
  int number = 0;    // from 1
  int count = 0;
};

std::string NameOf(const PartName& part) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", part.stem, part.number, part.count);
}

std::optional<PartName> ParsePartName(absl::string_view name) {
  constexpr size_t kDigits = 5;
  constexpr size_t kTail = 1 + kDigits + 4 + kDigits;  // "-00001-of-00003"
  if (!absl::ConsumeSuffix(&name, ".gguf") || name.size() < kTail) return std::nullopt;
  const absl::string_view tail = name.substr(name.size() - kTail);
  PartName part;
  part.stem = std::string(name.substr(0, name.size() - kTail));
  if (!absl::SimpleAtoi(tail.substr(1, kDigits), &part.number) ||
      !absl::SimpleAtoi(tail.substr(kTail - kDigits), &part.count) ||
      !absl::EndsWith(absl::StrCat(part.stem, tail, ".gguf"),
                      NameOf({"", part.number, part.count}))) {
    return std::nullopt;
  }
  return part;
}

struct SplitKeys {
  int number = 0;    // from 0
  int count = 0;     // 0 = not split
  int tensors = -1;  // of all parts; -1 = not said
};

absl::StatusOr<SplitKeys> ReadSplitKeys(const GgufMetadata& metadata) {
  GgufFields fields(metadata);
  SplitKeys keys;
  keys.count = fields.Int("split.count", {0, kMaxParts}, 0);
  keys.number = fields.Int("split.no", {0, kMaxParts - 1}, 0);
  keys.tensors = fields.Int("split.tensors.count", {0, INT32_MAX}, -1);
  ATELIER_RETURN_IF_ERROR(fields.status());
  return keys;
}

absl::Status Refuse(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

absl::StatusOr<GgufFile> OpenFile(const std::string& folder, const std::string& name) {
  ATELIER_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(folder + name));
  ATELIER_ASSIGN_OR_RETURN(std::optional<FetchJournal> fetched,
                           ReadFetchJournal(folder + name, mapping.bytes().size()));
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(mapping.bytes(), name);
  if (fetched) {
    ATELIER_RETURN_IF_ERROR(
        RequireDigestedBytes(*fetched, header.ok() ? header->data_begin : 1, name));
  }
  ATELIER_RETURN_IF_ERROR(header.status());
  return GgufFile{name, std::move(mapping), *std::move(header), std::move(fetched)};
}

// The first part's name must say what its keys say, so that the others can be found.
absl::StatusOr<PartName> FirstPart(const std::string& name, const SplitKeys& keys) {
  const std::optional<PartName> part = ParsePartName(name);
  if (!part || part->count != keys.count || part->number != keys.number + 1) {
    return Refuse(name, absl::StrFormat("its metadata say that it is part %d of %d of a split set, "
                                        "so its name must end in -%05d-of-%05d.gguf",
                                        keys.number + 1, keys.count, keys.number + 1, keys.count));
  }
  if (part->number == 1) return *part;
  return Refuse(name, absl::StrCat("is part ", part->number, " of ", part->count,
                                   " of a split set; give the first part, ",
                                   NameOf({part->stem, 1, part->count})));
}

absl::Status OpenParts(const std::string& folder, PartName part, GgufSet& set) {
  for (part.number = 2; part.number <= part.count; ++part.number) {
    absl::StatusOr<GgufFile> file = OpenFile(folder, NameOf(part));
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(NameOf(part), ", part ", part.number, " of ",
                                              part.count, " of a split set, is missing in ",
                                              folder.empty() ? "./" : folder));
    }
    ATELIER_RETURN_IF_ERROR(file.status());
    ATELIER_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(file->header.metadata));
    if (keys.number != part.number - 1 || keys.count != part.count) {
      return Refuse(file->name,
                    absl::StrCat("its metadata say part ", keys.number + 1, " of ", keys.count,
                                 ": it is another file than its name says"));
    }
    set.files.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const GgufSet& set, int promised) {
  absl::flat_hash_map<absl::string_view, absl::string_view> file_of;
  for (const GgufFile& file : set.files) {
    for (const GgufTensor& tensor : file.header.tensors) {
      const auto [at, is_new] = file_of.try_emplace(tensor.name, file.name);
      if (is_new) continue;
      return Refuse(file.name, absl::StrCat("tensor ", QuotedName(tensor.name), " is in ",
                                            at->second, " too"));
    }
  }
  if (promised < 0 || file_of.size() == static_cast<size_t>(promised)) return absl::OkStatus();
  return Refuse(set.files[0].name,
                absl::StrCat("split.tensors.count=", promised, ", but the parts hold ",
                             file_of.size(), " tensors: they are of different sets"));
}

}  // namespace

std::vector<std::string> GgufPartNames(const std::string& name) {
  std::optional<PartName> part = ParsePartName(name);
  if (!part || part->count < 1) return {name};
  std::vector<std::string> names;
  for (part->number = 1; part->number <= part->count; ++part->number) {
    names.push_back(NameOf(*part));
  }
  return names;
}

absl::StatusOr<GgufSet> OpenGgufSet(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t base = slash == std::string::npos ? 0 : slash + 1;
  const std::string folder = path.substr(0, base);
  GgufSet set;
  set.path = path;
  ATELIER_ASSIGN_OR_RETURN(GgufFile first, OpenFile(folder, path.substr(base)));
  set.files.push_back(std::move(first));
  ATELIER_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(set.metadata()));
  if (keys.count > 1) {
    ATELIER_ASSIGN_OR_RETURN(const PartName part, FirstPart(set.files[0].name, keys));
    ATELIER_RETURN_IF_ERROR(OpenParts(folder, part, set));
  }
  ATELIER_RETURN_IF_ERROR(CheckTensors(set, keys.tensors));
  return set;
}

}  // namespace atelier
