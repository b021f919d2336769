#pragma once

#include <cstddef>
#include <optional>
#include <vector>

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

// How a weight matrix is kept in memory and computed (docs/weight-layout.md, docs/numerics.md).
enum class Method {
  kBF16,
  kINT8,     // one scale per output row
  kINT4G32,  // 4 bit, symmetric, a scale per 32 (64, 128) inputs of an output row
  kINT4G64,
  kINT4G128,
  kINT4G32Z,  // … and a zero point beside each scale
  kINT4G64Z,
  kINT4G128Z,
  kMXFP4,      // E2M1, E8M0 scale per 32 inputs
  kFP8_BLOCK,  // E4M3, fp32 scale per 128 x 128
  kFP8_ROW,    // E4M3, fp32 scale per output row
  kMXFP8,      // E4M3, E8M0 scale per 32 inputs
  kQ8_0,       // from here on: GGUF block types, by their names there
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS
};

const std::vector<Method>& AllMethods();      // in the order of the enumeration
absl::string_view MethodName(Method method);  // "BF16", "INT4_G32", "INT4_G32_ZP", "Q4_K", …
std::optional<Method> ParseMethod(absl::string_view name);  // inverse of MethodName; exact case

}  // namespace atelier
