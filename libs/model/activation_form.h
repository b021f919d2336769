#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"

namespace atelier {

// How rows of activations are given to a product.
enum class ActivationForm {
  kBf16,       // rounded
  kInt8Row,    // int8 with one scale per row
  kInt8Blocks  // int8 with a scale per kInt8BlockInputs inputs; the last block may be shorter
};

inline constexpr int kInt8BlockInputs = 256;
inline constexpr int kLargestInt8Code = 127;

// Of a row of `width` > 0 inputs in one of the int8 forms.
size_t ScalesPerRow(ActivationForm form, int width);

// A row in one of the int8 forms: codes [width] in [-127, 127], scales [ScalesPerRow]. A row with a
// NaN or an infinity has NaN for all its scales. The same bits on every host.
void QuantizeRow(ActivationForm form, const BFloat16* row, int width, int8_t* codes, float* scales);

}  // namespace atelier
