#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libs/base/float16.h"
#include "libs/model/dtype.h"

namespace atelier {

// Element `index` of an array of BF16, F16 or F32 as it lies in a file (perhaps unaligned).
inline float FloatElement(DType dtype, const uint8_t* data, size_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * sizeof(bits), sizeof(bits));
  return dtype == DType::kBF16 ? ToFloat(BFloat16{bits}) : Float16ToFloat(bits);
}

}  // namespace atelier
