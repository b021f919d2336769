#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/device/cpu/cpu_memory.h"
#include "libs/device/cpu/cpu_threads.h"
#include "libs/device/device.h"
#include "libs/kernels/pack.h"

namespace atelier {

// A matrix in the packed layout of libs/kernels, as bf16.
class CpuMatrix final : public DeviceMatrix {
 public:
  // RESOURCE_EXHAUSTED when memory is refused. REQUIRES: parts agree in columns.
  static absl::StatusOr<std::unique_ptr<CpuMatrix>> Pack(absl::Span<const HostMatrix> parts,
                                                         const CpuThreads& threads);

  int rows() const override { return packed_.n; }
  int columns() const override { return packed_.k; }
  size_t bytes() const override { return memory_.bytes(); }
  const PackedMatrix& packed() const { return packed_; }

 private:
  CpuMatrix(CpuMemory memory, PackedMatrix packed) : memory_(std::move(memory)), packed_(packed) {}

  CpuMemory memory_;
  PackedMatrix packed_;
};

}  // namespace atelier
