#pragma once

#include <cstdint>
#include <memory>

namespace atelier {

// A oneTBB arena behind plain C types: the only file of the device that sees TBB. The tsan preset
// compiles it without ThreadSanitizer, which would take TBB's uninstrumented hand-overs of its
// tasks for races; CpuThreads orders what our code touches. Thread-safe.
class TbbArena {
 public:
  using Body = void (*)(void* context, int64_t begin, int64_t end);

  explicit TbbArena(int num_threads);
  ~TbbArena();

  // body(context, begin, end) over [0, count) in pieces of about `grain`, on the arena's threads
  // and the calling one. Blocks until all are done.
  void ParallelFor(int64_t count, int64_t grain, Body body, void* context) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atelier
