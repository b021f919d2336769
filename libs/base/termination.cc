#include "libs/base/termination.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <ctime>
#include <thread>

#include "absl/synchronization/notification.h"
#include "libs/base/check.h"

namespace atelier {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  // Whoever started the process under nohup wants it to outlive its terminal.
  struct sigaction hangup {};
  ATELIER_CHECK(::sigaction(SIGHUP, nullptr, &hangup) == 0);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

TerminationSignals::TerminationSignals() {
  const sigset_t set = Signals();
  ATELIER_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  ATELIER_CHECK(::signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

int TerminationSignals::Wait() {
  const sigset_t set = Signals();
  int number = 0;
  ATELIER_CHECK(::sigwait(&set, &number) == 0);
  return number;
}

int TerminationSignals::Pending() {
  const sigset_t set = Signals();
  const timespec no_wait{};
  const int number = ::sigtimedwait(&set, nullptr, &no_wait);
  return number > 0 ? number : 0;
}

void TerminationSignals::RunWhileWatching(const std::function<void()>& work,
                                          const std::function<void(int)>& on_signal) {
  absl::Notification done;
  std::thread worker([&] {
    work();
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(kPoll)) {
    if (const int number = Pending(); number != 0) on_signal(number);
  }
  worker.join();
}

void TerminationSignals::Raise() { ATELIER_CHECK(::kill(::getpid(), SIGTERM) == 0); }

}  // namespace atelier
