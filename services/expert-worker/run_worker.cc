#include "services/expert-worker/run_worker.h"

#include <cstdlib>
#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "libs/base/clock.h"
#include "libs/base/command_line.h"
#include "libs/base/log.h"
#include "services/expert-worker/worker.h"

namespace atelier {
namespace {

constexpr absl::Duration kSignalPoll = absl::Milliseconds(20);

// Runs `work` while watching for another signal, which ends the process: whoever sends two does not
// want to wait.
void FinishUnlessSignalled(const std::function<void()>& work, TerminationSignals& signals) {
  absl::Notification done;
  std::thread worker([&] {
    work();
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(kSignalPoll)) {
    if (const int number = signals.Pending(); number != 0) std::_Exit(128 + number);
  }
  worker.join();
}

}  // namespace

int RunWorker(const WorkerOptions& options, TerminationSignals& signals) {
  SystemClock clock;
  const Logger logger(ParseSeverity(options.log_level).value_or(Severity::kInfo));
  const auto failed = [&logger](const absl::Status& status) {
    logger.Error("worker_failed", {Kv("reason", status.ToString())});
    return FailureExitStatus(status);
  };
  auto started = Worker::Start(options, clock, logger);
  if (!started.ok()) return failed(started.status());
  Worker& worker = **started;
  absl::Status loaded;
  std::thread loading([&] {
    loaded = worker.Load();
    // After a signal there is no one to wake, and a second one would look like impatience.
    if (!loaded.ok() && !absl::IsCancelled(loaded)) TerminationSignals::Raise();
  });
  signals.Wait();
  worker.CancelLoading();
  FinishUnlessSignalled([&] { loading.join(); }, signals);
  if (absl::IsCancelled(loaded)) return 0;
  if (!loaded.ok()) return failed(loaded);
  bool drained = false;
  FinishUnlessSignalled([&] { drained = worker.Drain(); }, signals);
  if (!drained) std::_Exit(0);
  return 0;
}

}  // namespace atelier
