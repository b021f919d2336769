#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "libs/model/dtype.h"

namespace atelier {

// An element type of GGUF tensors: rows are cut into blocks of `elements`, of `bytes` each.
struct GgufType {
  uint32_t id;
  absl::string_view name;  // GGUF's: "Q4_K"
  size_t elements;
  size_t bytes;
  std::optional<DType> dtype;    // where an element is a number by itself
  std::optional<Method> method;  // where the kernels compute with the blocks as they are
};

// Every id that FindGgufType knows is below.
inline constexpr uint32_t kNumGgufTypeIds = 64;

// nullptr for an id that this build does not know.
const GgufType* FindGgufType(uint32_t id);

// What is known of an id that FindGgufType does not know: "Q6_0 of ik_llama.cpp", or "".
absl::string_view ForeignGgufType(uint32_t id);

// "F32, F16, …, Q4_K": the types that this build computes with, for messages.
std::string ComputedGgufTypes();

}  // namespace atelier
