#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "libs/device/device.h"
#include "libs/kernels/cpu_features.h"

namespace atelier {

struct CpuDeviceOptions {
  int num_threads = 0;             // 0 = the CPUs this process may run on
  CpuIsa cpu_isa = CpuIsa::kAuto;  // cap of the micro-kernels
  // kImmediate runs each operation inside the call that queues it. kDeferred runs queued work as
  // late as events and synchronisation allow, so that a test notices a wait that the graph forgot.
  enum class Mode { kImmediate, kDeferred };
  Mode mode = Mode::kImmediate;
};

// The CPU as a device: dense layers through libs/kernels (BF16 method), the rest in fp32. Results
// are the same bits for any number of threads and rows. FAILED_PRECONDITION when the cap asks for
// what the CPU lacks.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

}  // namespace atelier
