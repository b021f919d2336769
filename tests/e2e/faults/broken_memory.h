#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// What broken memory does to a process, done to it from outside.

namespace atelier::faults {

// Not-a-numbers in place of half of the weights that a worker has mapped from its store, until
// destroyed. The weights must be bf16. Nothing else may map the same store.
class PoisonedWeights {
 public:
  // Every file of packed experts below `store_dir`. NOT_FOUND when there is none.
  static absl::StatusOr<PoisonedWeights> Poison(const std::string& store_dir);
  PoisonedWeights(PoisonedWeights&&) = default;
  PoisonedWeights& operator=(PoisonedWeights&&) = delete;
  ~PoisonedWeights();

 private:
  struct File {
    std::string path;
    std::vector<uint64_t> weights;  // as they were
  };
  PoisonedWeights() = default;

  std::vector<File> files_;
};

enum class ShmSide { kRequests, kReplies };

// Overwrites, in all memory that the process shares with workers or frontends, what says which call
// is which: the epochs and sequences of one side, or the slots that its notices name, or the
// notices whole, so that calls are never seen. All that is checked by who reads it, or missed by
// who waits; what has no check (tensors, codes) stays. The
// process should be stopped, so that it reads what was overwritten. The same `seed` writes the
// same. Returns how much memory (segments) there was.
absl::StatusOr<int> ScribbleOverCalls(pid_t pid, ShmSide side, uint64_t seed);

}  // namespace atelier::faults
