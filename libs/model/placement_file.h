#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "libs/model/shard.h"

namespace atelier {

// Bytes of a placement file that are read at most.
inline constexpr size_t kMaxPlacementFileBytes = size_t{64} << 20;

// A worker and what it holds, or shall hold.
struct PlacedWorker {
  std::string name;
  std::string host;
  int numa_node = 0;
  int64_t memory_bytes = 0;       // that it may take for experts
  std::vector<ShardSpec> shards;  // of layers named one by one; may be empty

  friend bool operator==(const PlacedWorker&, const PlacedWorker&) = default;
};

// Who holds which experts of a model, as a file: `atelier plan` writes it, workers read from it
// what they are to hold (--placement), and the next plan begins with it.
//   {"atelier_placement": 1, "model_digest": "…", "num_experts": 128,
//    "workers": [{"name": "a", "host": "h1", "numa_node": 0, "memory_bytes": 68719476736,
//                 "shards": [{"layers": "1-46", "experts": "0-31", "slice": "0/1"}]}]}
struct PlacementFile {
  std::string model_digest;  // as Describe gives it; empty = of any model
  int num_experts = 0;       // of a layer
  std::vector<PlacedWorker> workers;

  // INVALID_ARGUMENT naming `file`, the worker and the field, also for two workers of one name and
  // experts that the model does not have.
  static absl::StatusOr<PlacementFile> Parse(absl::string_view text, absl::string_view file);
  std::string ToJson() const;

  // INVALID_ARGUMENT with the names there are.
  absl::StatusOr<const PlacedWorker*> Find(absl::string_view name) const;

  friend bool operator==(const PlacementFile&, const PlacementFile&) = default;
};

// The "workers" of a JSON object that may have anything else in it: of a placement file, or of one
// that says only which workers there are.
absl::StatusOr<std::vector<PlacedWorker>> ParseWorkerList(absl::string_view text,
                                                          absl::string_view file);

}  // namespace atelier
