#pragma once

#include <atomic>
#include <cstdint>

namespace atelier {

// The order between a thread that hands out work and the threads that do it, said again in our own
// atomics. A scheduler such as oneTBB orders them already, but ThreadSanitizer does not see inside
// a library that was compiled without it and would report all that the work touches. Owned by who
// hands out; thread-safe; costs an uncontended atomic a call. Says nothing about two workers, so a
// race between them is still reported.
class Handover {
 public:
  // By the owner: the work and all it reads are ready.
  void Give() { given_.store(true, std::memory_order_release); }  // pairs with Take
  // By a worker, first.
  void Take() const { (void)given_.load(std::memory_order_acquire); }
  // By a worker, last.
  void Return() { returned_.fetch_add(1, std::memory_order_release); }  // pairs with Collect
  // By the owner, once the scheduler says that all have returned.
  void Collect() const { (void)returned_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> given_{false};
  std::atomic<int64_t> returned_{0};
};

}  // namespace atelier
