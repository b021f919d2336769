#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "libs/transport/shm_layout.h"

namespace atelier {

// How long to look before sleeping: the whole of `longest` while that catches what is waited for,
// ever less while it does not, with a try of the whole now and then so that a change is noticed.
// Thread-safe.
class SpinBudget {
 public:
  explicit SpinBudget(absl::Duration longest) : longest_ns_(absl::ToInt64Nanoseconds(longest)) {}

  // For the wait that begins now; zero = do not look.
  absl::Duration Next();
  void Caught() { Set(longest_ns_); }
  void Missed() { Set(budget_ns_.load(std::memory_order_relaxed) / 2); }

 private:
  // Below this a look costs more than it can catch.
  static constexpr int64_t kLeastNs = 1000;
  static constexpr uint32_t kTryEvery = 32;

  void Set(int64_t ns) { budget_ns_.store(ns, std::memory_order_relaxed); }

  const int64_t longest_ns_;
  std::atomic<int64_t> budget_ns_{longest_ns_};
  std::atomic<uint32_t> waits_{0};
};

// What `--shm-spin` becomes here: nothing where this process has a single CPU, since who looks then
// keeps it from who is waited for.
absl::Duration UsableSpin(absl::Duration wanted);

// True as soon as `ready`, false after `budget`. Lets others have the CPU meanwhile who want it.
bool SpinUntil(absl::Duration budget, absl::FunctionRef<bool()> ready);

// By who has posted something.
void Ring(ShmBell& bell);
// Wakes whoever sleeps at the bell, armed or not.
void RingAlways(ShmBell& bell);
// By who waits. In this order: Arm, look again, Sleep with what Arm returned. Sleep returns when
// the bell rings or after `timeout`, sometimes for nothing.
uint32_t Arm(ShmBell& bell);
void Disarm(ShmBell& bell);
void Sleep(ShmBell& bell, uint32_t armed, absl::Duration timeout);

}  // namespace atelier
