#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "libs/base/clock.h"
#include "libs/base/log.h"
#include "libs/base/termination.h"
#include "libs/base/version.h"
#include "services/gpu-frontend/flags.h"
#include "services/gpu-frontend/frontend.h"
#include "services/gpu-frontend/model_stack.h"

namespace atelier {
namespace {

int Serve(const FrontendOptions& options, TerminationSignals& signals) {
  SystemClock clock;
  const Logger logger(ParseSeverity(options.log_level).value_or(Severity::kInfo));
  const auto failed = [&logger](const absl::Status& status) {
    logger.Error("frontend_failed", {Kv("reason", status.ToString())});
    return 1;
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
  frontend.Drain([&signals] { return signals.Pending() != 0; });
  return 0;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::TerminationSignals signals;
  atelier::FrontendOptions options;
  const atelier::FlagTable flags = atelier::FrontendFlags(&options);
  const auto command = flags.Parse(argc, argv);
  if (command.ok() && *command == atelier::CommandLine::kHelp) {
    std::cout << flags.Help();
    return 0;
  }
  if (command.ok() && *command == atelier::CommandLine::kVersion) {
    std::cout << "gpu-frontend " << atelier::Version() << "\n";
    return 0;
  }
  const absl::Status valid = command.ok() ? options.Resolve() : command.status();
  if (!valid.ok()) {
    std::cerr << "gpu-frontend: " << valid.message() << "\n";
    return 2;
  }
  return atelier::Serve(options, signals);
}
