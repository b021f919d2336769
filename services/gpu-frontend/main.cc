#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "libs/base/clock.h"
#include "libs/base/command_line.h"
#include "libs/base/heap.h"
#include "libs/base/log.h"
#include "libs/base/ready_file.h"
#include "libs/base/status_macros.h"
#include "libs/base/termination.h"
#include "services/gpu-frontend/flags.h"
#include "services/gpu-frontend/frontend.h"
#include "services/gpu-frontend/model_stack.h"

namespace atelier {
namespace {

constexpr absl::Duration kLastWords = absl::Milliseconds(200);

int Serve(const FrontendOptions& options, TerminationSignals& signals) {
  SystemClock clock;
  const Logger logger(ParseSeverity(options.log_level).value_or(Severity::kInfo));
  const auto failed = [&logger](const absl::Status& status) {
    logger.Error("frontend_failed", {Kv("reason", status.ToString())});
    return FailureExitStatus(status);
  };
  auto started = Frontend::Start(options, LoadModelStack, clock, logger);
  if (!started.ok()) return failed(started.status());
  Frontend& frontend = **started;
  absl::Status loaded;
  std::thread loading([&] {
    loaded = frontend.Load();
    if (!loaded.ok()) TerminationSignals::Raise();
  });
  signals.Wait();
  // Loading cannot be interrupted, and until it has ended there is nothing to drain.
  if (frontend.state() <= FrontendState::kLoading) std::_Exit(0);
  loading.join();
  if (!loaded.ok()) return failed(loaded);
  std::atomic<bool> hurry = false;
  signals.RunWhileWatching([&] { frontend.Drain([&hurry] { return hurry.load(); }); },
                           [&hurry](int) {
                             // Time for the streams to say why they end; then whatever holds a
                             // connection open is not waited for.
                             hurry = true;
                             absl::SleepFor(kLastWords);
                             std::_Exit(0);
                           });
  return 0;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::KeepFreedMemory();
  atelier::TerminationSignals signals;
  atelier::FrontendOptions options;
  const atelier::FlagTable flags = atelier::FrontendFlags(&options);
  if (const auto status =
          atelier::AnswerCommandLine("gpu-frontend", flags, argc, argv, [&]() -> absl::Status {
            ATELIER_RETURN_IF_ERROR(options.Resolve());
            return atelier::CheckReadyFile(options.ready_file);
          })) {
    return *status;
  }
  return atelier::Serve(options, signals);
}
