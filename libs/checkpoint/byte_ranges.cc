#include "libs/checkpoint/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace atelier {

void ByteRanges::Add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto at = ends_.upper_bound(range.begin);
  if (at != ends_.begin() && std::prev(at)->second >= range.begin) --at;
  while (at != ends_.end() && at->first <= range.end) {
    range.begin = std::min(range.begin, at->first);
    range.end = std::max(range.end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace_hint(at, range.begin, range.end);
}

bool ByteRanges::Contains(ByteRange range) const {
  if (range.begin >= range.end) return true;
  const auto after = ends_.upper_bound(range.begin);
  return after != ends_.begin() && std::prev(after)->second >= range.end;
}

ByteRanges ByteRanges::MissingIn(ByteRange range) const {
  ByteRanges missing;
  auto at = ends_.upper_bound(range.begin);
  if (at != ends_.begin()) --at;
  uint64_t begin = range.begin;
  for (; at != ends_.end() && at->first < range.end; ++at) {
    missing.Add({begin, at->first});
    begin = std::max(begin, at->second);
  }
  missing.Add({begin, range.end});
  return missing;
}

ByteRanges ByteRanges::Minus(const ByteRanges& others) const {
  ByteRanges left;
  for (const auto& [begin, end] : ends_) {
    for (const ByteRange& missing : others.MissingIn({begin, end}).ranges()) left.Add(missing);
  }
  return left;
}

ByteRanges ByteRanges::WithGapsUpTo(uint64_t max_gap) const {
  ByteRanges joined;
  const ByteRange* previous = nullptr;
  const std::vector<ByteRange> all = ranges();
  for (const ByteRange& range : all) {
    const bool joins = previous != nullptr && range.begin - previous->end <= max_gap;
    joined.Add({joins ? previous->end : range.begin, range.end});
    previous = &range;
  }
  return joined;
}

std::vector<ByteRange> ByteRanges::ranges() const {
  std::vector<ByteRange> all;
  all.reserve(ends_.size());
  for (const auto& [begin, end] : ends_) all.push_back({begin, end});
  return all;
}

uint64_t ByteRanges::bytes() const {
  uint64_t total = 0;
  for (const auto& [begin, end] : ends_) total += end - begin;
  return total;
}

}  // namespace atelier
