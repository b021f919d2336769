#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/checkpoint/fetch_journal.h"
#include "libs/checkpoint/mapped_file.h"

namespace atelier {

// What the readers of both formats fill in, and what makes a Checkpoint out of it.
struct MappedContents {
  struct Shard {
    std::string file;  // base name
    MappedFile mapping;
    size_t data_begin = 0;
    std::optional<FetchJournal> fetched = std::nullopt;  // unset = all of it
  };
  // Where a tensor lies.
  struct Entry {
    size_t shard = 0;
    DType dtype = DType::kBF16;
    const GgufType* blocks = nullptr;
    std::vector<int64_t> shape;  // outermost dimension first
    size_t begin = 0;            // in the file
    size_t size = 0;             // bytes
  };

  std::string directory;
  std::string promised_by;  // for messages: "config.json"
  ModelConfig config;
  std::vector<Shard> shards;
  absl::flat_hash_map<std::string, Entry> entries;
  std::string digest;

  // INVALID_ARGUMENT for a name that is there already.
  absl::Status Add(std::string name, Entry entry);
};

// INVALID_ARGUMENT if there are shared experts in a model that has none.
absl::StatusOr<std::unique_ptr<Checkpoint>> MakeMappedCheckpoint(MappedContents contents);

// What a checkpoint's digest takes of one file: its header, its length and the ends of its data.
// Those bytes, for who does not have the whole file.
ByteRanges DigestedBytes(uint64_t file_size, uint64_t data_begin);
// FAILED_PRECONDITION, with what to do, unless they were fetched.
absl::Status RequireDigestedBytes(const FetchJournal& fetched, uint64_t data_begin,
                                  absl::string_view file);
std::string FileDigest(absl::Span<const uint8_t> bytes, size_t data_begin);
// `config_text` and all files' digests, in any order.
std::string CheckpointDigest(absl::string_view config_text, std::vector<std::string> parts);

}  // namespace atelier
