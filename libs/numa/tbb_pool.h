#pragma once

#include <cstdint>
#include <memory>

namespace atelier {

// The threads of a oneTBB arena behind plain C types: the only file of this library that sees TBB.
// The tsan preset compiles it without ThreadSanitizer, which would take the hand-overs inside
// Debian's uninstrumented TBB for races; node_arena.cc orders what our code touches. Thread-safe.
class TbbPool {
 public:
  // Told when a thread of TBB's begins and ends to work here, on that thread; not of threads that
  // call Run. TBB lends its threads, so this happens again and again.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnEntry(int slot) = 0;  // 0 <= slot < num_threads
    virtual void OnExit() = 0;
  };

  // `observer` (null = none) is borrowed and must outlive the pool, whose end waits for its calls.
  TbbPool(int num_threads, Observer* observer);
  ~TbbPool();

  // Calls share(context) `width` times, from the calling thread and as many others as come in time.
  // Blocks until all calls have returned.
  void Run(int64_t width, void (*share)(void* context), void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atelier
