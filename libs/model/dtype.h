#pragma once

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace atelier {

// Element types that occur in checkpoints. The kernels compute only with some of them.
enum class DType {
  kBF16,
  kF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool
};

size_t DTypeBytes(DType dtype);
absl::string_view DTypeName(DType dtype);  // the safetensors spelling: "BF16", "F32", …
std::optional<DType> ParseDType(absl::string_view name);  // inverse of DTypeName; exact case

// How experts are kept in memory and computed.
enum class Method { kBF16, kINT8 };

absl::string_view MethodName(Method method);  // "BF16", "INT8"

}  // namespace atelier
