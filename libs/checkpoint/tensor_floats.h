#pragma once

#include <cstddef>

#include "libs/checkpoint/checkpoint.h"

namespace atelier {

size_t NumElements(const TensorView& tensor);

// Elements [first, first + count) of a tensor of RequireReadable, in fp32: exactly what the file
// says (of blocks as the format's reference computes it). REQUIRES: within the tensor, and whole
// blocks.
void ReadFloats(const TensorView& tensor, size_t first, size_t count, float* out);

// Row `row` of a matrix with `columns` columns, in fp32: what its numbers, or codes and scales,
// stand for (dequantize.h).
void ReadRow(const PublishedMatrix& matrix, int row, int columns, float* out);

}  // namespace atelier
