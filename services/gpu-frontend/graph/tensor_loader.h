#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libs/checkpoint/checkpoint.h"
#include "libs/device/device.h"

namespace atelier {

// Brings named tensors of a checkpoint, however they are published, onto a device, and lets go of
// the pages that they were read from. Matrices that are not floats are widened: to what their codes
// and scales stand for, in fp32, then rounded to bf16 once (docs/numerics.md). A borrowed view of
// both; not thread-safe.
class TensorLoader {
 public:
  TensorLoader(const Checkpoint& checkpoint, Device& device)
      : checkpoint_(checkpoint), device_(device), stream_(device.CreateStream()) {}

  // A vector of any readable dtype as fp32.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Floats(const std::string& name, int size);
  // [rows, columns] as fp32, row-major (routers).
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> FloatRows(const std::string& name, int rows,
                                                          int columns);
  // [rows, columns] as bf16, row-major (the embedding).
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> BFloat16Rows(const std::string& name, int rows,
                                                             int columns);
  // Several fp32 vectors one after the other.
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> StackedFloats(const std::vector<std::string>& names,
                                                              const std::vector<int>& sizes);
  // Matrices of equal columns on top of each other, in the device's own form; through bf16 where
  // they are quantised, or of different types.
  absl::StatusOr<std::unique_ptr<DeviceMatrix>> Matrix(const std::vector<std::string>& names,
                                                       const std::vector<int>& rows, int columns);

  // A routed expert's gate on top of its up [2 I, H], and its down [H, I], as Matrix's.
  absl::StatusOr<std::pair<std::unique_ptr<DeviceMatrix>, std::unique_ptr<DeviceMatrix>>> Expert(
      int layer, int expert);

  int64_t bytes_read() const { return bytes_read_; }

 private:
  // Before it is read. The flags are those that fetch it (Checkpoint::RequireFetched).
  absl::Status Count(absl::Span<const uint8_t> bytes,
                     absl::string_view role_flags = "--role=frontend");
  absl::StatusOr<std::unique_ptr<DeviceMatrix>> Load(const std::vector<PublishedMatrix>& matrices,
                                                     const std::vector<int>& rows, int columns);
  absl::StatusOr<PublishedMatrix> RequireMatrix(const std::string& name, int rows, int columns);
  absl::Status AppendFloats(const std::string& name, int size, std::vector<float>& values);
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Upload(const void* data, size_t bytes);

  const Checkpoint& checkpoint_;
  Device& device_;
  std::unique_ptr<DeviceStream> stream_;
  int64_t bytes_read_ = 0;
};

}  // namespace atelier
