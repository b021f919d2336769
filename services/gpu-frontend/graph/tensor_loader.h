#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/device/device.h"

namespace atelier {

// Brings named tensors of a checkpoint, floats or blocks, onto a device, and lets go of the pages
// that they were read from. A borrowed view of both; not thread-safe.
class TensorLoader {
 public:
  TensorLoader(const Checkpoint& checkpoint, Device& device)
      : checkpoint_(checkpoint), device_(device), stream_(device.CreateStream()) {}

  // A tensor of any readable dtype as fp32 (vectors, routers).
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Floats(const std::string& name,
                                                       std::vector<int64_t> shape);
  // [rows, columns] as bf16, row-major (the embedding).
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> BFloat16Rows(const std::string& name, int rows,
                                                             int columns);
  // Several fp32 vectors one after the other.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> StackedFloats(const std::vector<std::string>& names,
                                                              const std::vector<int>& sizes);
  // Matrices of equal columns on top of each other, in the device's own form; through bf16 where
  // they are published in blocks, or in different types.
  absl::StatusOr<std::unique_ptr<DeviceMatrix>> Matrix(const std::vector<std::string>& names,
                                                       const std::vector<int>& rows, int columns);

  int64_t bytes_read() const { return bytes_read_; }

 private:
  absl::StatusOr<TensorView> Require(const std::string& name, const std::vector<int64_t>& shape);
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Upload(const void* data, size_t bytes);

  const Checkpoint& checkpoint_;
  Device& device_;
  std::unique_ptr<DeviceStream> stream_;
  int64_t bytes_read_ = 0;
};

}  // namespace atelier
