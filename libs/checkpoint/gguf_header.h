#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/model/gguf_metadata.h"

namespace atelier {

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<int64_t> shape;  // outermost dimension first, as safetensors has it; the file's is
                               // the other way round
  uint64_t begin = 0;          // byte offsets from the start of the file
  uint64_t end = 0;
};

struct GgufHeader {
  GgufMetadata metadata;            // views of `bytes`
  std::vector<GgufTensor> tensors;  // by offset
  size_t data_begin = 0;            // offset of the data in the file
};

// Reads and checks the header of a GGUF file (version 2 or 3, little-endian), whose bytes are all
// given but whose data is not touched: every length against the file, keys and names unique, types
// known, rows of whole blocks, tensors aligned and within the file, without overlaps, gaps or bytes
// after the last one. Allocates no more than the header's own size warrants. Errors name `file` and
// the key or tensor: DATA_LOSS where bytes are missing, UNIMPLEMENTED for versions and types that
// this build does not know, INVALID_ARGUMENT otherwise.
absl::StatusOr<GgufHeader> ParseGgufHeader(absl::Span<const uint8_t> bytes, absl::string_view file);
// The same of the first bytes of a file of file_bytes. OUT_OF_RANGE where more of them are needed.
absl::StatusOr<GgufHeader> ParseGgufHeader(absl::Span<const uint8_t> bytes, uint64_t file_bytes,
                                           absl::string_view file);

// Whether `bytes` begin as a GGUF file does.
bool HasGgufMagic(absl::Span<const uint8_t> bytes);

}  // namespace atelier
