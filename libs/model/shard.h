#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// The unit of placement: (layers) x (experts) x (slice of the intermediate dimension).
struct ShardSpec {
  std::vector<int> layers;  // ascending
  int expert_begin = 0;
  int expert_end = 0;  // exclusive
  int slice_index = 0;
  int slice_count = 1;

  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};

// For messages, with both ends included: "layers 1-29, experts 0-15, slice 0/2"; no layers = "all
// layers".
std::string ShardName(const ShardSpec& shard);

// "1-3,5" for {1, 2, 3, 5}, and back. REQUIRES: ascending, not negative. INVALID_ARGUMENT for
// another text, and for an index that does not ascend or is `limit` or more.
std::string IndexRanges(const std::vector<int>& indexes);
absl::StatusOr<std::vector<int>> ParseIndexRanges(absl::string_view text, int limit);

// Half-open range of columns of the intermediate dimension.
struct IntermediateRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Boundary multiple of every slice: one panel of the packed layout (docs/weight-layout.md).
inline constexpr int kSliceGranule = 16;

// Slice i of n of a dimension of `intermediate_size` columns, the larger slices first, the same for
// every method, so that workers of different ones agree: whole multiples of 256, 128, 64, 32 or 16,
// the largest that costs (almost) no balance, so that groups of scales stay whole (1408 over 8: 176
// each; 2560 over 3: 896, 896, 768). A ragged end goes last. INVALID_ARGUMENT if i is not in [0, n)
// or a slice would be empty.
absl::StatusOr<IntermediateRange> SliceRange(int intermediate_size, int slice_index,
                                             int slice_count);

// "i/n" as typed by users. INVALID_ARGUMENT otherwise.
struct SliceSpec {
  int index = 0;
  int count = 1;
};
absl::StatusOr<SliceSpec> ParseSlice(absl::string_view text);

// "a-b", both inclusive, as typed by users: {a, b + 1}. INVALID_ARGUMENT otherwise.
struct ExpertRange {
  int begin = 0;
  int end = 0;
};
absl::StatusOr<ExpertRange> ParseExpertRange(absl::string_view text);

// The shard, of all layers, that both name; empty `experts` = all of the model's. REQUIRES: both
// parse.
ShardSpec ShardNamed(absl::string_view slice, absl::string_view experts, int num_experts);

}  // namespace atelier
