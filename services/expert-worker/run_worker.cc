#include "services/expert-worker/run_worker.h"

#include <cstdlib>
#include <thread>

#include "libs/base/clock.h"
#include "libs/base/command_line.h"
#include "libs/base/log.h"
#include "services/expert-worker/worker.h"

namespace atelier {
namespace {

// Whoever sends a second signal does not want to wait.
void EndAtOnce(int signal) { std::_Exit(128 + signal); }

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
  signals.RunWhileWatching([&] { loading.join(); }, EndAtOnce);
  if (absl::IsCancelled(loaded)) return 0;
  if (!loaded.ok()) return failed(loaded);
  bool drained = false;
  signals.RunWhileWatching([&] { drained = worker.Drain(); }, EndAtOnce);
  if (!drained) std::_Exit(0);
  return 0;
}

}  // namespace atelier
