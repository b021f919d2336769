#pragma once

#include <functional>

namespace atelier {

// SIGTERM, SIGINT and, unless the process was started with it ignored (nohup), SIGHUP as something
// to wait for instead of handlers. Construct it at the start of main, before any thread: threads
// started later inherit the blocked signals. SIGPIPE is ignored for the whole process. Wait and
// Pending belong to one thread (main's).
class TerminationSignals {
 public:
  TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

  // Blocks until a signal comes; returns its number.
  int Wait();
  // Takes a signal that has come, without blocking; 0 when there is none. A second Ctrl-C during a
  // long drain shows up here.
  int Pending();
  // Runs `work` on a thread of its own and returns when it has ended; `on_signal` is called on this
  // thread with the number of each signal that comes meanwhile, and may end the process.
  void RunWhileWatching(const std::function<void()>& work,
                        const std::function<void(int)>& on_signal);
  // Makes Wait return, from any thread: the process ends itself, e.g. because loading failed.
  static void Raise();
};

}  // namespace atelier
