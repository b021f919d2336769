#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/checkpoint/fetch_journal.h"
#include "libs/checkpoint/gguf_header.h"
#include "libs/checkpoint/mapped_file.h"

namespace atelier {

struct GgufFile {
  std::string name;  // base name
  MappedFile mapping;
  GgufHeader header;                    // views of the mapping
  std::optional<FetchJournal> fetched;  // unset = all of it
};

// The GGUF file at a path, or the split set whose first part is there: mapped, headers checked.
// Says nothing of whether this build knows the model. Immutable, so thread-safe; movable.
struct GgufSet {
  std::string path;  // of the first file
  std::vector<GgufFile> files;

  // Of the first file, which has it for all.
  const GgufMetadata& metadata() const { return files[0].header.metadata; }
  absl::Span<const uint8_t> Data(size_t file, const GgufTensor& tensor) const {
    return files[file].mapping.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
  }
};

// Errors name file and key or tensor: NOT_FOUND (a missing file or part), otherwise as
// ParseGgufHeader, and INVALID_ARGUMENT for parts that do not belong together, a name in two parts,
// or a path to another part than the first.
absl::StatusOr<GgufSet> OpenGgufSet(const std::string& path);

// The names of all parts of the split set that `name` is a part of, by their numbers; else `name`
// alone. The files' metadata have the last word.
std::vector<std::string> GgufPartNames(const std::string& name);

}  // namespace atelier
