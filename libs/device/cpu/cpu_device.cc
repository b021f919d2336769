#include "libs/device/cpu/cpu_device.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/device/cpu/cpu_matrix.h"
#include "libs/device/cpu/cpu_memory.h"
#include "libs/device/cpu/cpu_stream.h"
#include "libs/kernels/vector/row_kernel_table.h"

namespace atelier {
namespace {

int AllowedCpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? std::max(CPU_COUNT(&allowed), 1)
                                                                : 1;
}

class CpuBuffer final : public DeviceBuffer {
 public:
  explicit CpuBuffer(CpuMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  CpuMemory memory_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int num_threads, const KernelTable& kernels, const RowKernels& rows,
            CpuDeviceOptions::Mode mode)
      : threads_(num_threads),
        kernels_(kernels),
        rows_(rows),
        mode_(mode),
        name_(absl::StrCat("cpu ", kernels.isa(Method::kBF16), " x", num_threads)) {}

  absl::string_view name() const override { return name_; }

  int64_t FreeBytes() const override { return FreeMemoryBytes(); }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(MemoryKind, size_t bytes) override {
    ATELIER_ASSIGN_OR_RETURN(CpuMemory memory, CpuMemory::Allocate(bytes));
    return std::make_unique<CpuBuffer>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<DeviceMatrix>> LoadMatrix(
      absl::Span<const HostMatrix> parts) override {
    ATELIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMatrix> matrix,
                             CpuMatrix::Pack(parts, threads_));
    return matrix;
  }

  std::unique_ptr<DeviceStream> CreateStream() override {
    return std::make_unique<CpuStream>(threads_, kernels_, rows_, mode_);
  }
  std::unique_ptr<DeviceEvent> CreateEvent() override { return std::make_unique<CpuEvent>(); }

 private:
  CpuThreads threads_;
  KernelTable kernels_;
  RowKernels rows_;
  CpuDeviceOptions::Mode mode_;
  std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  if (options.num_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads=", options.num_threads, ": must not be negative"));
  }
  const CpuFeatures features = CpuFeatures::Detect();
  ATELIER_ASSIGN_OR_RETURN(const KernelTable kernels,
                           KernelTable::Select(features, options.cpu_isa));
  const int threads = options.num_threads == 0 ? AllowedCpus() : options.num_threads;
  return std::make_unique<CpuDevice>(threads, kernels, SelectRowKernels(features, options.cpu_isa),
                                     options.mode);
}

}  // namespace atelier
