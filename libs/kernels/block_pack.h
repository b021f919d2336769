#pragma once

#include <cstdint>

#include "libs/kernels/pack.h"
#include "libs/model/quant_source.h"

namespace atelier {

// Packs output rows of panels [panel_begin, panel_end) of a matrix [n, k] into `block` of
// PackedMatrixBytes(), so that threads can share one matrix. Rows n and beyond get scale 0.
// REQUIRES: a block-quantised or FP8 method; block is 64-byte aligned; ValidatePackedShape.
void PackQuantMatrix(const QuantSource& source, Method method, int n, int k, int panel_begin,
                     int panel_end, uint8_t* block);

}  // namespace atelier
