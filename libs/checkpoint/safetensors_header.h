#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/model/dtype.h"

namespace atelier {

// Bounds of what a file may claim. The largest published checkpoints have about 2e5 tensors.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr size_t kMaxTensors = size_t{1} << 19;    // of a file, and of a checkpoint
inline constexpr size_t kMaxNameBytes = 512;
inline constexpr size_t kMaxRank = 8;

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte offsets from the start of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  size_t data_begin = 0;              // offset of the data in the file
  std::vector<HeaderTensor> tensors;  // by offset
};

// Where the data begin in a file of `file_bytes` whose first bytes (8, or all if it has fewer) are
// given. Errors as below.
absl::StatusOr<uint64_t> SafetensorsDataBegin(absl::Span<const uint8_t> first, uint64_t file_bytes,
                                              absl::string_view file);

// Reads and checks the header of a safetensors file, whose bytes are all given but whose data is
// not touched: lengths against the file, names unique, dtypes known, shape x dtype = bytes, and
// tensors that cover the data without gap or overlap. Errors name `file` and the tensor: DATA_LOSS
// where bytes are missing, UNIMPLEMENTED for an unknown dtype, INVALID_ARGUMENT otherwise.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const uint8_t> bytes,
                                                         absl::string_view file);

}  // namespace atelier
