#include "tools/atelier/fetch/checkpoint_fetcher.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/gguf_header.h"
#include "libs/checkpoint/gguf_set.h"
#include "libs/checkpoint/mapped_checkpoint.h"
#include "libs/checkpoint/mapped_file.h"
#include "libs/checkpoint/safetensors_header.h"
#include "libs/checkpoint/shard_index.h"

namespace atelier {
namespace {

constexpr absl::string_view kConfig = "config.json";
constexpr absl::string_view kSingleFile = "model.safetensors";
constexpr absl::string_view kIndex = "model.safetensors.index.json";
constexpr absl::string_view kGenerationConfig = "generation_config.json";
constexpr std::array<absl::string_view, 11> kTokenizer = {"tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "tokenizer.model",
                                                          "tiktoken.model",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          "preprocessor_config.json"};
constexpr uint64_t kMaxSmallBytes = uint64_t{200} << 20;
// Most headers of safetensors fit into the first; a GGUF's has the vocabulary in it.
constexpr uint64_t kFirstBytes = uint64_t{128} << 10;
constexpr uint64_t kFirstGgufBytes = uint64_t{1} << 20;
constexpr uint64_t kGgufGrowth = 4;

// The beginning of a file, in memory.
class PrefixSink final : public ByteSink {
 public:
  absl::Status Write(uint64_t /*offset*/, absl::Span<const uint8_t> bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

// Writes to a file and commits from time to time.
class FileSink final : public ByteSink {
 public:
  FileSink(PartialFile& file, uint64_t begin, uint64_t commit_bytes)
      : file_(file), commit_bytes_(commit_bytes), committed_(begin), next_(begin) {}

  absl::Status Write(uint64_t offset, absl::Span<const uint8_t> bytes) override {
    ATELIER_RETURN_IF_ERROR(file_.Write(offset, bytes));
    next_ = offset + bytes.size();
    return next_ - committed_ >= commit_bytes_ ? Finish() : absl::OkStatus();
  }
  absl::Status Finish() {
    ATELIER_RETURN_IF_ERROR(file_.Commit({committed_, next_}));
    committed_ = next_;
    return absl::OkStatus();
  }

 private:
  PartialFile& file_;
  const uint64_t commit_bytes_;
  uint64_t committed_;
  uint64_t next_;
};

// Tells how many bytes came through it.
class CountingSink final : public ByteSink {
 public:
  CountingSink(ByteSink& sink, const std::function<void(uint64_t)>& count)
      : sink_(sink), count_(count) {}

  absl::Status Write(uint64_t offset, absl::Span<const uint8_t> bytes) override {
    ATELIER_RETURN_IF_ERROR(sink_.Write(offset, bytes));
    if (count_) count_(bytes.size());
    return absl::OkStatus();
  }

 private:
  ByteSink& sink_;
  const std::function<void(uint64_t)>& count_;
};

bool IsGguf(absl::string_view name) { return absl::EndsWith(name, ".gguf"); }

// Where the data begin; OUT_OF_RANGE where that is beyond `prefix`.
absl::StatusOr<uint64_t> DataBegin(absl::Span<const uint8_t> prefix, uint64_t size,
                                   const std::string& name) {
  if (IsGguf(name)) {
    ATELIER_ASSIGN_OR_RETURN(const GgufHeader header, ParseGgufHeader(prefix, size, name));
    if (header.data_begin <= prefix.size()) return header.data_begin;
  } else {
    ATELIER_ASSIGN_OR_RETURN(const uint64_t begin, SafetensorsDataBegin(prefix, size, name));
    if (begin <= prefix.size()) return begin;
  }
  return absl::OutOfRangeError(absl::StrCat(name, ": its header is longer"));
}

// How much of a file to ask for when its header did not end within `have` bytes.
uint64_t NextPrefix(absl::Span<const uint8_t> have, uint64_t size, const std::string& name) {
  if (IsGguf(name)) return std::min(size, have.size() * kGgufGrowth);
  return SafetensorsDataBegin(have, size, name).value_or(size);
}

absl::Status CheckRoom(const std::string& directory, uint64_t needed) {
  struct statvfs info = {};
  if (::statvfs(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", directory));
  }
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("too little space in --dir=", directory, ": ",
                                                   needed, " bytes are to be fetched and ", free,
                                                   " are free"));
}

}  // namespace

std::string CheckpointFetcher::PathOf(const std::string& name) const {
  return absl::StrCat(options_.directory, "/", name);
}

std::string CheckpointFetcher::checkpoint_path() const {
  const std::string& gguf = options_.source.gguf_file;
  return gguf.empty() ? options_.directory : PathOf(gguf);
}

void CheckpointFetcher::Report(uint64_t bytes) const {
  if (options_.on_bytes) options_.on_bytes(bytes);
}

absl::Status CheckpointFetcher::FetchHeaders() {
  ATELIER_RETURN_IF_ERROR(readers_.Run(1, [this](RemoteReader& reader, size_t /*task*/) {
    return options_.source.gguf_file.empty() ? FetchSmallFiles(reader) : NameFiles(reader);
  }));
  ATELIER_RETURN_IF_ERROR(readers_.Run(files_.size(), [this](RemoteReader& reader, size_t i) {
    return OpenFile(reader, *files_[i]);
  }));
  for (const std::unique_ptr<File>& file : files_) {
    if (file->local->begun_anew()) {
      notes_.push_back(
          absl::StrCat(file->remote->name(), " is another one on the server now: fetched anew"));
    }
    if (file->sent_whole) {
      notes_.push_back(
          absl::StrCat(file->remote->name(), " was fetched whole: the server knows no ranges"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointFetcher::FetchSmallFiles(RemoteReader& reader) {
  ATELIER_ASSIGN_OR_RETURN(const bool found, FetchSmall(reader, std::string(kConfig)));
  if (!found) {
    return absl::NotFoundError(absl::StrCat(PlaceOf(options_.source.FileUrl(kConfig)),
                                            ": status 404: no checkpoint is published there"));
  }
  ATELIER_RETURN_IF_ERROR(FetchSmall(reader, std::string(kGenerationConfig)).status());
  for (const absl::string_view name : kTokenizer) {
    if (!options_.tokenizer) break;
    ATELIER_RETURN_IF_ERROR(FetchSmall(reader, std::string(name)).status());
  }
  return NameFiles(reader);
}

// False if there is no such file.
absl::StatusOr<bool> CheckpointFetcher::FetchSmall(RemoteReader& reader, const std::string& name) {
  const std::string path = PathOf(name);
  const absl::StatusOr<SmallFile> file =
      reader.ReadSmall(options_.source.FileUrl(name), kMaxSmallBytes, EtagOfFetchedFile(path));
  if (absl::IsNotFound(file.status())) return false;
  if (!file.ok()) return file.status();
  // From here on all files are those of one commit.
  if (options_.source.is_hub && !file->commit.empty()) {
    options_.source = options_.source.AtRevision(file->commit);
  }
  if (file->not_modified) return true;
  ATELIER_RETURN_IF_ERROR(
      WriteFetchedFile(path, options_.source.spelled, file->etag, file->content));
  Report(file->content.size());
  return true;
}

// The files of the tensors, as the readers will look for them.
absl::Status CheckpointFetcher::NameFiles(RemoteReader& reader) {
  if (!options_.source.gguf_file.empty()) {
    for (const std::string& name : GgufPartNames(options_.source.gguf_file)) AddFile(name);
    return absl::OkStatus();
  }
  const absl::Status single = OpenFile(reader, AddFile(std::string(kSingleFile)));
  if (!absl::IsNotFound(single)) return single;
  files_.clear();
  by_name_.clear();
  ATELIER_ASSIGN_OR_RETURN(const bool found, FetchSmall(reader, std::string(kIndex)));
  if (!found) {
    return absl::NotFoundError(absl::StrCat(PlaceOf(options_.source.folder), " has neither ",
                                            kSingleFile, " nor ", kIndex));
  }
  ATELIER_ASSIGN_OR_RETURN(const MappedFile index,
                           MappedFile::OpenSmall(PathOf(std::string(kIndex)), kMaxSmallBytes));
  ATELIER_ASSIGN_OR_RETURN(const ShardIndex shards, ParseShardIndex(index.text(), kIndex));
  for (const std::string& name : shards.files) AddFile(name);
  return absl::OkStatus();
}

CheckpointFetcher::File& CheckpointFetcher::AddFile(const std::string& name) {
  files_.push_back(std::make_unique<File>());
  files_.back()->remote = std::make_unique<RemoteFile>(name, options_.source.FileUrl(name));
  by_name_[name] = files_.back().get();
  return *files_.back();
}

absl::Status CheckpointFetcher::OpenLocal(File& file) {
  const RemoteContent content{options_.source.spelled, *file.remote->size(), file.remote->etag()};
  ATELIER_ASSIGN_OR_RETURN(file.local, PartialFile::Open(PathOf(file.remote->name()), content));
  return absl::OkStatus();
}

absl::Status CheckpointFetcher::OpenFile(RemoteReader& reader, File& file) {
  if (file.local != nullptr) return absl::OkStatus();
  const absl::StatusOr<bool> resumed = Resume(reader, file);
  if (resumed.ok() && *resumed) return absl::OkStatus();
  const absl::Status status = resumed.ok() ? FetchHeader(reader, file) : resumed.status();
  if (!absl::IsUnimplemented(status) || options_.headers_only) return status;
  return FetchWholeFile(reader, file);
}

// Whether the header and the ends are there already, of what the server has: a byte tells.
absl::StatusOr<bool> CheckpointFetcher::Resume(RemoteReader& reader, File& file) {
  const std::string path = PathOf(file.remote->name());
  const absl::StatusOr<MappedFile> there = MappedFile::Open(path);
  if (!there.ok()) return false;
  const absl::StatusOr<std::optional<FetchJournal>> journal =
      ReadFetchJournal(path, there->bytes().size());
  if (!journal.ok() || !*journal) return false;
  const absl::StatusOr<uint64_t> data_begin =
      DataBegin(there->bytes(), (*journal)->size, file.remote->name());
  if (!data_begin.ok()) return false;
  if (!DigestedBytes((*journal)->size, *data_begin).Minus((*journal)->have).empty()) return false;
  PrefixSink byte;
  ATELIER_RETURN_IF_ERROR(reader.ReadRange(*file.remote, {0, 1}, byte));
  if (file.remote->size() != (*journal)->size || file.remote->etag() != (*journal)->etag) {
    return false;
  }
  ATELIER_RETURN_IF_ERROR(OpenLocal(file));
  return true;
}

absl::Status CheckpointFetcher::FetchHeader(RemoteReader& reader, File& file) {
  const std::string& name = file.remote->name();
  PrefixSink prefix;
  uint64_t wanted = IsGguf(name) ? kFirstGgufBytes : kFirstBytes;
  uint64_t data_begin = 0;
  while (true) {
    ATELIER_RETURN_IF_ERROR(
        reader.ReadRange(*file.remote, {prefix.bytes().size(), wanted}, prefix));
    const uint64_t size = *file.remote->size();
    const absl::StatusOr<uint64_t> begin = DataBegin(prefix.bytes(), size, name);
    if (!absl::IsOutOfRange(begin.status())) {
      ATELIER_ASSIGN_OR_RETURN(data_begin, begin);
      break;
    }
    wanted = NextPrefix(prefix.bytes(), size, name);
  }
  ATELIER_RETURN_IF_ERROR(OpenLocal(file));
  const ByteRange header{0, prefix.bytes().size()};
  if (!file.local->have().Contains(header)) {
    ATELIER_RETURN_IF_ERROR(file.local->Write(0, prefix.bytes()));
    ATELIER_RETURN_IF_ERROR(file.local->Commit(header));
  }
  const ByteRanges ends = DigestedBytes(*file.remote->size(), data_begin);
  for (const ByteRange& range : ends.Minus(file.local->have()).ranges()) {
    ATELIER_RETURN_IF_ERROR(FetchRange(reader, file, range));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFetcher::FetchWholeFile(RemoteReader& reader, File& file) {
  // Opens the local file when the first bytes are there: their size is known then.
  class Sink final : public ByteSink {
   public:
    Sink(CheckpointFetcher& fetcher, File& file) : fetcher_(fetcher), file_(file) {}
    absl::Status Write(uint64_t offset, absl::Span<const uint8_t> bytes) override {
      if (file_.local == nullptr) ATELIER_RETURN_IF_ERROR(fetcher_.OpenLocal(file_));
      if (file_.local->have().Contains({0, *file_.remote->size()})) {
        return absl::AlreadyExistsError("all of it is there");
      }
      fetcher_.Report(bytes.size());
      return file_.local->Write(offset, bytes);
    }

   private:
    CheckpointFetcher& fetcher_;
    File& file_;
  };
  Sink sink(*this, file);
  const absl::Status status = reader.ReadWhole(*file.remote, sink);
  if (absl::IsAlreadyExists(status)) return absl::OkStatus();
  ATELIER_RETURN_IF_ERROR(status);
  if (file.local == nullptr) ATELIER_RETURN_IF_ERROR(OpenLocal(file));  // of no bytes
  file.sent_whole = true;
  return file.local->Commit({0, *file.remote->size()});
}

absl::Status CheckpointFetcher::FetchRange(RemoteReader& reader, File& file, ByteRange range) {
  FileSink sink(*file.local, range.begin, options_.commit_bytes);
  CountingSink counted(sink, options_.on_bytes);
  absl::Status status = reader.ReadRange(*file.remote, range, counted);
  // What came before a failure counts too.
  status.Update(sink.Finish());
  return status;
}

ByteRanges CheckpointFetcher::MissingOf(const File& file, const ByteRanges& wanted) const {
  const ByteRanges have = file.local->have();
  return wanted.Minus(have).WithGapsUpTo(options_.max_gap).Minus(have);
}

absl::StatusOr<FetchTotals> CheckpointFetcher::Missing(const FileBytes& wanted) const {
  FetchTotals totals;
  totals.wanted = TotalBytes(wanted);
  for (const auto& [name, ranges] : wanted) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      return absl::InternalError(absl::StrCat(name, " is wanted and not among the files"));
    }
    totals.missing += MissingOf(*found->second, ranges).bytes();
  }
  return totals;
}

std::vector<CheckpointFetcher::Piece> CheckpointFetcher::PiecesOf(const FileBytes& wanted) {
  std::vector<Piece> pieces;
  for (const auto& [name, ranges] : wanted) {
    File* const file = by_name_.at(name);
    for (const ByteRange& range : MissingOf(*file, ranges).ranges()) {
      for (uint64_t begin = range.begin; begin < range.end; begin += options_.request_bytes) {
        pieces.push_back({file, {begin, std::min(range.end, begin + options_.request_bytes)}});
      }
    }
  }
  return pieces;
}

absl::Status CheckpointFetcher::FetchBytes(const FileBytes& wanted) {
  ATELIER_ASSIGN_OR_RETURN(const FetchTotals totals, Missing(wanted));
  ATELIER_RETURN_IF_ERROR(CheckRoom(options_.directory, totals.missing));
  const std::vector<Piece> pieces = PiecesOf(wanted);
  return readers_.Run(pieces.size(), [&](RemoteReader& reader, size_t i) {
    return FetchRange(reader, *pieces[i].file, pieces[i].range);
  });
}

}  // namespace atelier
