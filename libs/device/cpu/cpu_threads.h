#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace atelier {

// The threads of a CPU device: a oneTBB arena of its own. Thread-safe.
class CpuThreads {
 public:
  explicit CpuThreads(int num_threads);
  ~CpuThreads();

  int num_threads() const { return num_threads_; }
  // body(begin, end) over [0, count) in pieces of about `grain`; at once on this thread when there
  // is one piece only.
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t)>& body) const;

 private:
  struct Arena;
  int num_threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace atelier
