#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// model.safetensors.index.json: which file holds which tensor.
struct ShardIndex {
  std::vector<std::string> files;                         // plain names, sorted, without repeats
  absl::flat_hash_map<std::string, std::string> file_of;  // tensor -> file
};

// INVALID_ARGUMENT naming `file`, and the tensor where there is one: no JSON, no weight_map, a
// tensor listed twice, or a file name that is more than a name (a path could leave the folder).
absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text, absl::string_view file);

}  // namespace atelier
