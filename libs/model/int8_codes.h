#pragma once

#include <cstdint>

#include "libs/base/float16.h"

namespace atelier {

// Symmetric int8 of one row: codes[i] = round-to-nearest-even(row[i] / scale), in [-127, 127], with
// scale = max(largest magnitude / 127, smallest normal float). Returns the scale. A row with a NaN
// or an infinity gets scale NaN and zero codes. The same bits on every host: plain fp32 multiply
// and add, no library call.
float QuantizeInt8Row(const float* row, int k, int8_t* codes);
float QuantizeInt8Row(const BFloat16* row, int k, int8_t* codes);

}  // namespace atelier
