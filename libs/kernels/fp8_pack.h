#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/block_pack.h"

namespace atelier {

// PanelBytes of the FP8 methods.
size_t Fp8PanelBytes(Method method, int k);

// PackQuantMatrix of the FP8 methods. A code that is NaN, or a scale that is not finite, makes the
// scale that it belongs to NaN: that output column is NaN for every row of activations.
void PackFp8Matrix(const QuantSource& source, Method method, int n, int k, int panel_begin,
                   int panel_end, uint8_t* block);

}  // namespace atelier
