#include <iostream>

#include "libs/base/command_line.h"
#include "libs/base/heap.h"
#include "libs/base/ready_file.h"
#include "libs/base/status_macros.h"
#include "libs/base/termination.h"
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
    return FailureExitStatus(table.status());
  }
  std::cout << CapabilitiesText(features, *table);
  return StatusOfOutput("expert-worker", 0);
}

}  // namespace
}  // namespace atelier

int main(int argc, char** argv) {
  atelier::KeepFreedMemory();
  atelier::TerminationSignals signals;
  atelier::WorkerOptions options;
  const atelier::FlagTable flags = atelier::WorkerFlags(&options);
  if (const auto status =
          atelier::AnswerCommandLine("expert-worker", flags, argc, argv, [&]() -> absl::Status {
            ATELIER_RETURN_IF_ERROR(options.Validate());
            return atelier::CheckReadyFile(options.ready_file);
          })) {
    return *status;
  }
  return options.capabilities ? atelier::PrintCapabilities(options)
                              : atelier::RunWorker(options, signals);
}
