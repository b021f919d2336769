#pragma once

#include "libs/model/dtype.h"
#include "libs/model/quant_source.h"

namespace atelier {

// What the first `count` codes of `block` stand for, in fp32: scale * (code - zero), then + min,
// each rounded once, in the order of the formats' references. A code or scale that is no number
// gives NaN. `bf16_scales` as QuantMatrix's. REQUIRES: a block-quantised method; count as
// QuantSource::Read's.
void Dequantize(Method method, bool bf16_scales, const QuantBlock& block, int count, float* out);

}  // namespace atelier
