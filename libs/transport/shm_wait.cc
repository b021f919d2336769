#include "libs/transport/shm_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace atelier {
namespace {

// Between two looks at the clock.
constexpr int kLooks = 32;

// Not the private kind: the other side is another process.
void FutexWake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

absl::Duration SpinBudget::Next() {
  const bool try_all = waits_.fetch_add(1, std::memory_order_relaxed) % kTryEvery == 0;
  const int64_t ns = try_all ? longest_ns_ : budget_ns_.load(std::memory_order_relaxed);
  return ns < kLeastNs ? absl::ZeroDuration() : absl::Nanoseconds(ns);
}

absl::Duration UsableSpin(absl::Duration wanted) {
  cpu_set_t allowed;
  const bool known = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  return known && CPU_COUNT(&allowed) < 2 ? absl::ZeroDuration() : wanted;
}

bool SpinUntil(absl::Duration budget, absl::FunctionRef<bool()> ready) {
  if (ready()) return true;
  if (budget <= absl::ZeroDuration()) return false;
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(budget);
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    // Who is waited for may wait for this CPU: costs nothing where nobody does, and where somebody
    // does, looking on would cost a whole slice of the scheduler's, thousands of times the hop.
    ::sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

void Ring(ShmBell& bell) {
  // Between the post, which is already done, and the look at `armed`; pairs with the one in Arm.
  // One of both sides sees what the other wrote.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (bell.armed.load(std::memory_order_relaxed) == 0) return;
  bell.armed.store(0, std::memory_order_relaxed);  // one wake-up is enough
  RingAlways(bell);
}

void RingAlways(ShmBell& bell) {
  bell.word.fetch_add(1, std::memory_order_release);  // pairs with Arm
  FutexWake(bell.word);
}

uint32_t Arm(ShmBell& bell) {
  const uint32_t word = bell.word.load(std::memory_order_acquire);  // pairs with RingAlways
  bell.armed.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the one in Ring
  return word;
}

void Disarm(ShmBell& bell) { bell.armed.store(0, std::memory_order_relaxed); }

void Sleep(ShmBell& bell, uint32_t armed, absl::Duration timeout) {
  timespec relative = absl::ToTimespec(timeout);
  ::syscall(SYS_futex, &bell.word, FUTEX_WAIT, armed,
            timeout == absl::InfiniteDuration() ? nullptr : &relative, nullptr, 0);
}

}  // namespace atelier
