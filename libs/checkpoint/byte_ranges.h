#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace atelier {

// Half-open range of bytes of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// A set of bytes of a file, as ranges that neither overlap nor touch. A plain value.
class ByteRanges {
 public:
  // An empty range adds nothing. O(log n) and the ranges that it covers.
  void Add(ByteRange range);
  // Every byte of `range` is in the set; true for an empty range.
  bool Contains(ByteRange range) const;
  // What of `range` is not in the set.
  ByteRanges MissingIn(ByteRange range) const;
  ByteRanges Minus(const ByteRanges& others) const;
  // The same bytes and, between ranges that are at most `max_gap` bytes apart, the gaps.
  ByteRanges WithGapsUpTo(uint64_t max_gap) const;

  std::vector<ByteRange> ranges() const;  // ascending
  uint64_t bytes() const;
  bool empty() const { return ends_.empty(); }

 private:
  std::map<uint64_t, uint64_t> ends_;  // begin -> end
};

}  // namespace atelier
