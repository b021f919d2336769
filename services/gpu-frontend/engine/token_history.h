#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace atelier {

// How often each token occurs in one sequence, for the penalties. Not thread-safe.
class TokenHistory {
 public:
  void AddPrompt(absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) counts_.try_emplace(token, 0);
  }
  void AddOutput(int32_t token) { ++counts_[token]; }

  // Token → occurrences in the output; 0 where only the prompt holds it.
  const absl::flat_hash_map<int32_t, int>& counts() const { return counts_; }

 private:
  absl::flat_hash_map<int32_t, int> counts_;
};

}  // namespace atelier
