#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace atelier {

// Bytes that a matrix is read from: equal lines, one after the other, which each hold `per_line` of
// its rows (or columns), in order; or what every part of it needs.
struct MatrixBytes {
  enum class Lines { kWhole, kRows, kColumns };

  absl::Span<const uint8_t> data;
  Lines lines = Lines::kWhole;
  size_t num_lines = 1;
  size_t per_line = 1;
};

// A rectangle of a matrix.
struct MatrixPart {
  int row = 0;
  int column = 0;
  int num_rows = 0;
  int num_columns = 0;
};

// What of `bytes` reading the part touches: whole lines, of which the part has a row (or a column).
// A part that is cut across the lines therefore needs all of them: each line's piece is far too
// short to be asked for by itself.
std::vector<absl::Span<const uint8_t>> BytesOfPart(const std::vector<MatrixBytes>& bytes,
                                                   const MatrixPart& part);

}  // namespace atelier
