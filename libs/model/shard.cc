#include "libs/model/shard.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/base/checked_math.h"
#include "libs/base/quoted.h"

namespace atelier {
namespace {

// Digits only: SimpleAtoi alone would take signs and blanks.
std::optional<int> ParseCount(absl::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  int value = 0;
  if (!digits || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

std::optional<std::pair<int, int>> ParsePair(absl::string_view text, char separator) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, separator);
  if (parts.size() != 2) return std::nullopt;
  const std::optional<int> first = ParseCount(parts[0]);
  const std::optional<int> second = ParseCount(parts[1]);
  if (!first.has_value() || !second.has_value()) return std::nullopt;
  return std::pair(*first, *second);
}

// Columns of the largest slice, in whole granules.
int64_t LargestSlice(int intermediate_size, int slice_count, int granule) {
  return int64_t{CeilDiv(CeilDiv(intermediate_size, granule), slice_count)} * granule;
}

// The largest that leaves the slices as even as the smallest does, or the mean at least 95 % of the
// largest slice: the slowest worker is waited for.
int GranuleOf(int intermediate_size, int slice_count) {
  const int64_t even = LargestSlice(intermediate_size, slice_count, kSliceGranule);
  for (int granule = 256; granule > kSliceGranule; granule /= 2) {
    if (intermediate_size % granule != 0 || slice_count > intermediate_size / granule) continue;
    const int64_t largest = LargestSlice(intermediate_size, slice_count, granule);
    if (largest == even || 95 * largest * slice_count <= int64_t{100} * intermediate_size) {
      return granule;
    }
  }
  return kSliceGranule;
}

}  // namespace

std::string ShardName(const ShardSpec& shard) {
  return absl::StrCat(
      shard.layers.empty() ? "all layers" : absl::StrCat("layers ", IndexRanges(shard.layers)),
      ", experts ", shard.expert_begin, "-", shard.expert_end - 1, ", slice ", shard.slice_index,
      "/", shard.slice_count);
}

std::string IndexRanges(const std::vector<int>& indexes) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < indexes.size(); begin = end) {
    end = begin + 1;
    while (end < indexes.size() && indexes[end] == indexes[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", indexes[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", indexes[end - 1]);
  }
  return text;
}

absl::StatusOr<std::vector<int>> ParseIndexRanges(absl::string_view text, int limit) {
  std::vector<int> indexes;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    std::optional<std::pair<int, int>> range = ParsePair(item, '-');
    const std::optional<int> single = ParseCount(item);
    if (single.has_value()) range = std::pair(*single, *single);
    const int next = indexes.empty() ? 0 : indexes.back() + 1;
    if (!range.has_value() || range->first < next || range->second < range->first ||
        range->second >= limit) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(text), " must be ascending numbers below ", limit,
                       " and ranges a-b with both ends, for example 0-3,5"));
    }
    for (int index = range->first; index <= range->second; ++index) indexes.push_back(index);
  }
  return indexes;
}

absl::StatusOr<IntermediateRange> SliceRange(int intermediate_size, int slice_index,
                                             int slice_count) {
  if (intermediate_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("intermediate_size=", intermediate_size, " must be positive"));
  }
  if (slice_index < 0 || slice_index >= slice_count) {
    return absl::InvalidArgumentError(absl::StrCat("slice ", slice_index, "/", slice_count,
                                                   ": the index must be from 0 to count - 1"));
  }
  const int granules = (intermediate_size - 1) / kSliceGranule + 1;
  if (slice_count > granules) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice ", slice_index, "/", slice_count,
                     ": intermediate_size=", intermediate_size, " has only ", granules,
                     " granules of ", kSliceGranule, ", so at most ", granules, " slices"));
  }
  const int granule = GranuleOf(intermediate_size, slice_count);
  const int count = CeilDiv(intermediate_size, granule);
  const int smaller = count / slice_count;
  const int num_larger = count % slice_count;
  const int64_t begin = int64_t{slice_index} * smaller + std::min(slice_index, num_larger);
  const int64_t end = begin + smaller + (slice_index < num_larger ? 1 : 0);
  return IntermediateRange{static_cast<int>(begin * granule),
                           static_cast<int>(std::min<int64_t>(end * granule, intermediate_size))};
}

absl::StatusOr<SliceSpec> ParseSlice(absl::string_view text) {
  const std::optional<std::pair<int, int>> pair = ParsePair(text, '/');
  if (!pair.has_value() || pair->first >= pair->second) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice \"", text, "\" must be i/n with 0 <= i < n, for example 0/2"));
  }
  return SliceSpec{pair->first, pair->second};
}

absl::StatusOr<ExpertRange> ParseExpertRange(absl::string_view text) {
  const std::optional<std::pair<int, int>> pair = ParsePair(text, '-');
  if (!pair.has_value() || pair->first > pair->second || pair->second == INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts \"", text, "\" must be a-b with a <= b, both included, for example 0-15"));
  }
  return ExpertRange{pair->first, pair->second + 1};
}

ShardSpec ShardNamed(absl::string_view slice, absl::string_view experts, int num_experts) {
  const SliceSpec part = ParseSlice(slice).value();
  const ExpertRange range =
      experts.empty() ? ExpertRange{0, num_experts} : ParseExpertRange(experts).value();
  return {{}, range.begin, range.end, part.index, part.count};
}

}  // namespace atelier
