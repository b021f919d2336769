#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/atelier/fetch/parallel_readers.h"
#include "tools/atelier/fetch/partial_file.h"
#include "tools/atelier/fetch/remote_source.h"
#include "tools/atelier/role_bytes.h"

namespace atelier {

struct FetcherOptions {
  RemoteSource source;
  std::string directory;      // exists
  bool tokenizer = false;     // its files too
  bool headers_only = false;  // refuses servers that send whole files only
  int jobs = 8;
  uint64_t max_gap = uint64_t{256} << 10;       // between ranges that are asked for together
  uint64_t request_bytes = uint64_t{64} << 20;  // at most, by one request
  uint64_t commit_bytes = uint64_t{16} << 20;   // that a kill may cost, per job
  ReaderOptions reader;                         // sleep and stopped may be unset
  std::function<std::unique_ptr<HttpClient>()> connect;
  std::function<void(uint64_t)> on_bytes;  // that have come; from any thread
};

struct FetchTotals {
  uint64_t wanted = 0;   // bytes that the roles need
  uint64_t missing = 0;  // of which had to come, gaps included
};

// Brings a published checkpoint into a folder: first what every reader needs to open it, then the
// bytes of the tensors that are wanted. What is there of the same content is kept. Not
// thread-safe; uses threads.
class CheckpointFetcher {
 public:
  explicit CheckpointFetcher(FetcherOptions options)
      : options_(std::move(options)), readers_(options_.jobs, options_.connect, options_.reader) {}

  // Config, index and tokenizer whole, headers and the ends of the data of the tensors' files. Then
  // Checkpoint::Open(checkpoint_path()) succeeds, or says what is wrong with it. Errors as
  // RemoteReader's and PartialFile's; UNIMPLEMENTED with headers_only from a server that sends
  // whole files only; without, it fetches them.
  absl::Status FetchHeaders();
  std::string checkpoint_path() const;

  // What of the files is wanted and not there.
  absl::StatusOr<FetchTotals> Missing(const FileBytes& wanted) const;
  // RESOURCE_EXHAUSTED, with both sizes, before anything is fetched that does not fit on the disk.
  absl::Status FetchBytes(const FileBytes& wanted);

  // For people: what is unusual.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct File {
    std::unique_ptr<RemoteFile> remote;
    std::unique_ptr<PartialFile> local;
    bool sent_whole = false;
  };
  struct Piece {
    File* file = nullptr;
    ByteRange range;
  };

  absl::Status FetchSmallFiles(RemoteReader& reader);
  absl::StatusOr<bool> FetchSmall(RemoteReader& reader, const std::string& name);
  absl::Status NameFiles(RemoteReader& reader);
  File& AddFile(const std::string& name);
  absl::Status OpenFile(RemoteReader& reader, File& file);
  absl::StatusOr<bool> Resume(RemoteReader& reader, File& file);
  absl::Status OpenLocal(File& file);
  absl::Status FetchHeader(RemoteReader& reader, File& file);
  absl::Status FetchWholeFile(RemoteReader& reader, File& file);
  absl::Status FetchRange(RemoteReader& reader, File& file, ByteRange range);
  ByteRanges MissingOf(const File& file, const ByteRanges& wanted) const;
  std::vector<Piece> PiecesOf(const FileBytes& wanted);
  void Report(uint64_t bytes) const;
  std::string PathOf(const std::string& name) const;

  FetcherOptions options_;
  ParallelReaders readers_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, File*> by_name_;
  std::vector<std::string> notes_;
};

}  // namespace atelier
