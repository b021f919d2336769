#pragma once

#include <optional>

#include "libs/kernels/pack.h"

namespace atelier {

// Output rows [begin, begin + n) of a packed matrix, in place. REQUIRES: begin, and n unless the
// slice ends with the matrix, are multiples of kPanelWidth; begin + n <= matrix.n.
PackedMatrix SliceOutputs(const PackedMatrix& matrix, int begin, int n);

// Whether inputs [begin, begin + k) of a matrix with `whole` inputs lie in its panels byte for byte
// as if they alone had been packed: they begin at a block of the layout and end with one, or with
// the matrix. Never a proper slice of INT8 and FP8_ROW, whose scales belong to all inputs of a row.
bool CanSliceInputs(Method method, int whole, int begin, int k);

// Those inputs, in place; the panels of the slice are as far apart as those of the matrix.
// REQUIRES: CanSliceInputs.
PackedMatrix SliceInputs(const PackedMatrix& matrix, int begin, int k);

}  // namespace atelier
