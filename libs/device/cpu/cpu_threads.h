#pragma once

#include <cstdint>
#include <functional>

#include "libs/device/cpu/tbb_arena.h"

namespace atelier {

// The threads of a CPU device. Thread-safe.
class CpuThreads {
 public:
  explicit CpuThreads(int num_threads) : num_threads_(num_threads), arena_(num_threads) {}

  int num_threads() const { return num_threads_; }
  // body(begin, end) over [0, count) in pieces of about `grain`; at once on this thread when there
  // is one piece only.
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t)>& body) const;

 private:
  int num_threads_;
  TbbArena arena_;
};

}  // namespace atelier
