#pragma once

#include <atomic>
#include <cstdint>

namespace atelier {

// Lets threads wait until a condition holds that other threads bring about with atomics:
//   for (uint32_t seen = events.Now(); !condition(); seen = events.Now()) events.Await(seen);
// They look for some microseconds and then sleep, so that those who wait do not keep the core from
// the one that is waited for. Thread-safe; Signal costs an atomic increment when nobody sleeps.
class EventCount {
 public:
  uint32_t Now() const { return count_.load(std::memory_order_acquire); }  // pairs with Signal

  // After the change that makes a condition true.
  void Signal() {
    count_.fetch_add(1, std::memory_order_release);  // pairs with Now
    count_.notify_all();
  }

  // Until Signal is called after the Now() that returned `seen`.
  void Await(uint32_t seen) const {
    for (int i = 0; i < kLooks; ++i) {
      if (Now() != seen) return;
      __builtin_ia32_pause();
    }
    count_.wait(seen, std::memory_order_acquire);
  }

 private:
  static constexpr int kLooks = 200;  // about 5 us

  std::atomic<uint32_t> count_{0};
};

}  // namespace atelier
