// Linked into every program of the tsan preset. Debian's Abseil is compiled without
// ThreadSanitizer, which hence sees none of absl::Mutex's ordering and would report every guarded
// member as a race. The linker sends our calls (--wrap, cmake/AtelierTargets.cmake) through the
// functions below, which tell TSan what the real ones order. Conditions are polled, because Abseil
// evaluates them on other threads, behind the annotations' back. Names are those of the inline
// namespace of Debian 12.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

using absl::Condition;
using absl::CondVar;
using absl::Duration;
using absl::Mutex;
using absl::Notification;
using absl::Time;

// Declares the real function behind a wrapped symbol and begins the definition of its wrapper.
#define ATELIER_WRAP(result, symbol, ...)         \
  extern "C" result __real_##symbol(__VA_ARGS__); \
  extern "C" result __wrap_##symbol(__VA_ARGS__); \
  extern "C" result __wrap_##symbol(__VA_ARGS__)

ATELIER_WRAP(void, _ZN4absl7debian35Mutex4LockEv, Mutex* mutex) {
  __real__ZN4absl7debian35Mutex4LockEv(mutex);
  __tsan_acquire(mutex);
}

ATELIER_WRAP(bool, _ZN4absl7debian35Mutex7TryLockEv, Mutex* mutex) {
  const bool locked = __real__ZN4absl7debian35Mutex7TryLockEv(mutex);
  if (locked) __tsan_acquire(mutex);
  return locked;
}

ATELIER_WRAP(void, _ZN4absl7debian35Mutex6UnlockEv, Mutex* mutex) {
  __tsan_release(mutex);
  __real__ZN4absl7debian35Mutex6UnlockEv(mutex);
}

ATELIER_WRAP(void, _ZN4absl7debian35Mutex10ReaderLockEv, Mutex* mutex) {
  __real__ZN4absl7debian35Mutex10ReaderLockEv(mutex);
  __tsan_acquire(mutex);
}

ATELIER_WRAP(void, _ZN4absl7debian35Mutex12ReaderUnlockEv, Mutex* mutex) {
  __tsan_release(mutex);
  __real__ZN4absl7debian35Mutex12ReaderUnlockEv(mutex);
}

namespace {

constexpr Duration kPollInterval = absl::Microseconds(50);

bool AwaitUntil(Mutex* mutex, const Condition& condition, Time deadline) {
  while (!condition.Eval()) {
    if (absl::Now() >= deadline) return false;
    mutex->Unlock();
    absl::SleepFor(kPollInterval);
    mutex->Lock();
  }
  return true;
}

bool LockWhenUntil(Mutex* mutex, const Condition& condition, Time deadline) {
  mutex->Lock();
  return AwaitUntil(mutex, condition, deadline);
}

Time After(Duration timeout) { return absl::Now() + timeout; }

// Where Notification keeps the flag that HasBeenNotified(), which is inline, reads.
void* FlagOf(const Notification* notification) {
  return reinterpret_cast<char*>(const_cast<Notification*>(notification)) + sizeof(Mutex);
}

}  // namespace

ATELIER_WRAP(void, _ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, Mutex* mutex,
             const Condition& condition) {
  AwaitUntil(mutex, condition, absl::InfiniteFuture());
}

ATELIER_WRAP(bool, _ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE,
             Mutex* mutex, const Condition& condition, Duration timeout) {
  return AwaitUntil(mutex, condition, After(timeout));
}

ATELIER_WRAP(bool, _ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE,
             Mutex* mutex, const Condition& condition, Time deadline) {
  return AwaitUntil(mutex, condition, deadline);
}

ATELIER_WRAP(void, _ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE, Mutex* mutex,
             const Condition& condition) {
  LockWhenUntil(mutex, condition, absl::InfiniteFuture());
}

ATELIER_WRAP(bool, _ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE,
             Mutex* mutex, const Condition& condition, Duration timeout) {
  return LockWhenUntil(mutex, condition, After(timeout));
}

ATELIER_WRAP(bool, _ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE,
             Mutex* mutex, const Condition& condition, Time deadline) {
  return LockWhenUntil(mutex, condition, deadline);
}

ATELIER_WRAP(void, _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, CondVar* variable, Mutex* mutex) {
  __tsan_release(mutex);
  __real__ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(variable, mutex);
  __tsan_acquire(mutex);
}

ATELIER_WRAP(bool, _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE,
             CondVar* variable, Mutex* mutex, Duration timeout) {
  __tsan_release(mutex);
  const bool timed_out =
      __real__ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(variable, mutex,
                                                                                  timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

ATELIER_WRAP(bool, _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE,
             CondVar* variable, Mutex* mutex, Time deadline) {
  __tsan_release(mutex);
  const bool timed_out = __real__ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(
      variable, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

ATELIER_WRAP(void, _ZN4absl7debian312Notification6NotifyEv, Notification* notification) {
  __tsan_release(FlagOf(notification));
  __real__ZN4absl7debian312Notification6NotifyEv(notification);
}

ATELIER_WRAP(void, _ZNK4absl7debian312Notification19WaitForNotificationEv,
             const Notification* notification) {
  __real__ZNK4absl7debian312Notification19WaitForNotificationEv(notification);
  __tsan_acquire(FlagOf(notification));
}

ATELIER_WRAP(bool, _ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE,
             const Notification* notification, Duration timeout) {
  const bool notified =
      __real__ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE(
          notification, timeout);
  if (notified) __tsan_acquire(FlagOf(notification));
  return notified;
}

ATELIER_WRAP(bool, _ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE,
             const Notification* notification, Time deadline) {
  const bool notified =
      __real__ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE(
          notification, deadline);
  if (notified) __tsan_acquire(FlagOf(notification));
  return notified;
}

// What libraries compiled without TSan order where it does not see it. oneTBB, and Abseil's search
// for deadlocks, keep their own books with memset and memmove: only calls made by those libraries
// themselves. Abseil's Status and gRPC's slices count their references inside the library: only
// reports in which the last owner frees.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libtbb.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "race:absl::debian3::Status::Unref\n"
         "race:grpc::Slice::~Slice\n";
}
