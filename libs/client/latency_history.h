#pragma once

#include <array>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace atelier {

// How long one worker's recent answers took, by the size of the call. Thread-compatible. Add is
// O(1) but every few calls, when it sorts a small window.
class LatencyHistory {
 public:
  struct Usual {
    absl::Duration p95;
    bool guessed = false;  // from calls of other sizes
  };

  void Add(int rows, absl::Duration latency);
  // The 95th percentile for calls of about so many rows, of few answers the longest. Where such
  // calls are not known, that of the nearest smaller ones in proportion to the rows, but no more
  // than that of the nearest larger ones. nullopt: no answer yet.
  std::optional<Usual> UsualFor(int rows) const;

 private:
  static constexpr size_t kWindow = 64;
  static constexpr size_t kEvery = 8;  // new samples between two computations, once so many came
  static constexpr size_t kNumSizes = 16;  // powers of two of rows

  struct Size {
    std::vector<absl::Duration> window;  // at most kWindow, a ring
    size_t next = 0;
    size_t new_samples = 0;
    std::optional<absl::Duration> p95;
  };
  static size_t SizeOf(int rows);

  std::array<Size, kNumSizes> sizes_;
};

}  // namespace atelier
