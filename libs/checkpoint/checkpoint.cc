#include "libs/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/fetch_journal.h"
#include "libs/checkpoint/gguf_checkpoint.h"
#include "libs/checkpoint/ignored_modules.h"
#include "libs/checkpoint/mapped_checkpoint.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/checkpoint/safetensors_header.h"
#include "libs/checkpoint/shard_index.h"
#include "libs/checkpoint/tensor_list.h"
#include "libs/checkpoint/tensor_names.h"

namespace atelier {
namespace {

constexpr absl::string_view kConfigName = "config.json";
constexpr absl::string_view kGenerationConfigName = "generation_config.json";
constexpr absl::string_view kSingleFileName = "model.safetensors";
constexpr absl::string_view kIndexName = "model.safetensors.index.json";
constexpr size_t kMaxConfigBytes = size_t{4} << 20;
constexpr size_t kMaxIndexBytes = 100'000'000;

// True for a dangling link too: opening it will say what is wrong.
bool Exists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

std::string PathOf(const std::string& directory, absl::string_view file) {
  return absl::StrCat(directory, "/", file);
}

// For messages that already name file and fault.
absl::Status InDirectory(const absl::Status& status, const std::string& directory) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(directory, ": ", status.message()));
}

// Where there is none, a GGUF file may be what was meant.
absl::StatusOr<MappedFile> OpenConfig(const std::string& directory) {
  const std::string path = PathOf(directory, kConfigName);
  absl::StatusOr<MappedFile> file = MappedFile::OpenSmall(path, kMaxConfigBytes);
  if (!absl::IsNotFound(file.status())) return file;
  std::error_code ignored;
  for (const auto& item : std::filesystem::directory_iterator(directory, ignored)) {
    if (item.path().extension() != ".gguf") continue;
    return absl::NotFoundError(absl::StrCat(file.status().message(),
                                            "; if its GGUF file is meant, ",
                                            "give that: ", item.path().string()));
  }
  return file;
}

absl::StatusOr<ModelConfig> ReadConfig(const std::string& directory, absl::string_view text) {
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return InDirectory(config.status(), directory);
  const std::string path = PathOf(directory, kGenerationConfigName);
  if (!Exists(path)) return config;
  ATELIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::OpenSmall(path, kMaxConfigBytes));
  ATELIER_RETURN_IF_ERROR(InDirectory(MergeGenerationConfig(file.text(), *config), directory));
  return config;
}

// As the usual loaders do: a folder's single file is preferred to an index.
absl::StatusOr<ShardIndex> FindShards(const std::string& directory) {
  if (Exists(PathOf(directory, kSingleFileName))) {
    return ShardIndex{.files = {std::string(kSingleFileName)}, .file_of = {}};
  }
  const std::string index_path = PathOf(directory, kIndexName);
  if (!Exists(index_path)) {
    return absl::NotFoundError(
        absl::StrCat(directory, " has neither ", kSingleFileName, " nor ", kIndexName));
  }
  ATELIER_ASSIGN_OR_RETURN(const MappedFile file,
                           MappedFile::OpenSmall(index_path, kMaxIndexBytes));
  absl::StatusOr<ShardIndex> index = ParseShardIndex(file.text(), kIndexName);
  if (!index.ok()) return InDirectory(index.status(), directory);
  return index;
}

// Names the first of the shards that are missing, and how many: an interrupted download lacks many.
absl::Status CheckShardsExist(const std::string& directory, const ShardIndex& index) {
  std::vector<std::string> missing;
  for (const std::string& file : index.files) {
    struct stat info = {};
    if (::stat(PathOf(directory, file).c_str(), &info) != 0) missing.push_back(file);
  }
  if (missing.empty()) return absl::OkStatus();
  const auto needs = [&](const auto& item) { return item.second == missing[0]; };
  const auto tensor = std::find_if(index.file_of.begin(), index.file_of.end(), needs);
  return absl::NotFoundError(
      absl::StrCat(directory, ": ", missing[0], ", which ", kIndexName, " names for tensor ",
                   tensor == index.file_of.end() ? "" : QuotedName(tensor->first), ", is missing (",
                   missing.size(), " of ", index.files.size(), " files are)"));
}

absl::Status AddTensors(SafetensorsHeader header, size_t shard, const IgnoredModules& ignored,
                        MappedContents& contents) {
  if (contents.entries.size() + header.tensors.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(contents.directory, " has more than ", kMaxTensors, " tensors"));
  }
  contents.entries.reserve(contents.entries.size() + header.tensors.size());
  for (HeaderTensor& tensor : header.tensors) {
    ATELIER_RETURN_IF_ERROR(InDirectory(
        ignored.Check(tensor.name, tensor.dtype, contents.shards[shard].file), contents.directory));
    MappedContents::Entry entry;
    entry.shard = shard;
    entry.dtype = tensor.dtype;
    entry.shape = std::move(tensor.shape);
    entry.begin = header.data_begin + tensor.begin;
    entry.size = tensor.end - tensor.begin;
    ATELIER_RETURN_IF_ERROR(contents.Add(CanonicalName(tensor.name), std::move(entry)));
  }
  return absl::OkStatus();
}

// Maps every shard and enters its tensors. Returns the files' digests.
absl::StatusOr<std::vector<std::string>> ReadShards(const std::vector<std::string>& files,
                                                    MappedContents& contents) {
  ATELIER_ASSIGN_OR_RETURN(const IgnoredModules ignored,
                           IgnoredModules::Create(contents.config.quantization));
  std::vector<std::string> digests;
  for (const std::string& file : files) {
    ATELIER_ASSIGN_OR_RETURN(MappedFile mapping,
                             MappedFile::Open(PathOf(contents.directory, file)));
    ATELIER_ASSIGN_OR_RETURN(
        std::optional<FetchJournal> fetched,
        ReadFetchJournal(PathOf(contents.directory, file), mapping.bytes().size()));
    absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(mapping.bytes(), file);
    absl::Status usable = header.status();
    if (fetched)
      usable = RequireDigestedBytes(*fetched, header.ok() ? header->data_begin : 1, file);
    usable.Update(header.status());
    if (!usable.ok()) return InDirectory(usable, contents.directory);
    digests.push_back(FileDigest(mapping.bytes(), header->data_begin));
    contents.shards.push_back({file, std::move(mapping), header->data_begin, std::move(fetched)});
    ATELIER_RETURN_IF_ERROR(
        AddTensors(*std::move(header), contents.shards.size() - 1, ignored, contents));
  }
  return digests;
}

// A tensor that a file has and the index does not is used all the same: only files are chosen by
// the index.
absl::Status CheckIndexAgrees(const ShardIndex& index, const MappedContents& contents) {
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = contents.entries.find(CanonicalName(tensor));
    const std::string* actual =
        found == contents.entries.end() ? nullptr : &contents.shards[found->second.shard].file;
    if (actual != nullptr && *actual == file) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(contents.directory, ": ", kIndexName, " says that ", file, " holds tensor ",
                     QuotedName(tensor), ", but ",
                     actual == nullptr ? "no file does" : absl::StrCat(*actual, " does")));
  }
  return absl::OkStatus();
}

// Layers beyond the last one predict further tokens; they are no part of the model that is served.
// Such a layer mixes the last hidden state with a token's embedding by its eh_proj. Any other layer
// there means that config.json is of another model.
absl::Status DropPredictors(MappedContents& contents) {
  const int num_layers = contents.config.num_layers;
  for (const auto& [name, entry] : contents.entries) {
    const int layer = LayerOf(name);
    if (layer < num_layers) continue;
    if (!contents.entries.contains(LayerPrefix(layer) + "eh_proj.weight")) {
      return absl::InvalidArgumentError(absl::StrCat(
          contents.directory, ": ", kConfigName, " says num_hidden_layers=", num_layers, ", but ",
          contents.shards[entry.shard].file, " holds tensor ", QuotedName(name),
          ": one of the two is of another model"));
    }
  }
  absl::erase_if(contents.entries, [num_layers](const auto& item) {
    return absl::StartsWith(item.first, "mtp.") || LayerOf(item.first) >= num_layers;
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFolder(const std::string& directory) {
  MappedContents contents;
  contents.directory = directory;
  contents.promised_by = std::string(kConfigName);
  ATELIER_ASSIGN_OR_RETURN(const MappedFile config_file, OpenConfig(directory));
  ATELIER_ASSIGN_OR_RETURN(contents.config, ReadConfig(directory, config_file.text()));
  ATELIER_ASSIGN_OR_RETURN(const ShardIndex index, FindShards(directory));
  ATELIER_RETURN_IF_ERROR(CheckShardsExist(directory, index));
  ATELIER_ASSIGN_OR_RETURN(std::vector<std::string> digests, ReadShards(index.files, contents));
  ATELIER_RETURN_IF_ERROR(CheckIndexAgrees(index, contents));
  contents.digest = CheckpointDigest(config_file.text(), std::move(digests));
  ATELIER_RETURN_IF_ERROR(DropPredictors(contents));
  return MakeMappedCheckpoint(std::move(contents));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the checkpoint ", path));
  }
  return S_ISDIR(info.st_mode) ? OpenFolder(path) : OpenGgufCheckpoint(path);
}

}  // namespace atelier
