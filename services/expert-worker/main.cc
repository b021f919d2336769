#include <iostream>

#include "libs/base/termination.h"
#include "libs/base/version.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/kernel_table.h"
#include "services/expert-worker/flags.h"
#include "services/expert-worker/run_worker.h"

namespace atelier {
namespace {

int PrintCapabilities(const WorkerOptions& options) {
  const CpuFeatures features = CpuFeatures::Detect();
  const auto table = KernelTable::Select(features, ParseCpuIsa(options.cpu_isa).value());
  if (!table.ok()) {
    std::cerr << "expert-worker: " << table.status().message() << "\n";
    return 1;
  }
  std::cout << CapabilitiesText(features, *table);
  return 0;
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::TerminationSignals signals;
  atelier::WorkerOptions options;
  const atelier::FlagTable flags = atelier::WorkerFlags(&options);
  const auto command = flags.Parse(argc, argv);
  if (command.ok() && *command == atelier::CommandLine::kHelp) {
    std::cout << flags.Help();
    return 0;
  }
  if (command.ok() && *command == atelier::CommandLine::kVersion) {
    std::cout << "expert-worker " << atelier::Version() << "\n";
    return 0;
  }
  const absl::Status valid = command.ok() ? options.Validate() : command.status();
  if (!valid.ok()) {
    std::cerr << "expert-worker: " << valid.message() << "\n";
    return 2;
  }
  return options.capabilities ? atelier::PrintCapabilities(options)
                              : atelier::RunWorker(options, signals);
}
