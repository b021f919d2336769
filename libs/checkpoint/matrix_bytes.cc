#include "libs/checkpoint/matrix_bytes.h"

#include "libs/base/check.h"
#include "libs/base/checked_math.h"

namespace atelier {
namespace {

// REQUIRES: the matrix has the rows or columns [first, first + count).
absl::Span<const uint8_t> LinesOf(const MatrixBytes& bytes, int first, int count) {
  const size_t line_bytes = bytes.data.size() / bytes.num_lines;
  const size_t begin = static_cast<size_t>(first) / bytes.per_line;
  const size_t end = CeilDiv(static_cast<size_t>(first + count), bytes.per_line);
  ATELIER_CHECK(begin <= end && end <= bytes.num_lines);
  return bytes.data.subspan(begin * line_bytes, (end - begin) * line_bytes);
}

}  // namespace

std::vector<absl::Span<const uint8_t>> BytesOfPart(const std::vector<MatrixBytes>& bytes,
                                                   const MatrixPart& part) {
  std::vector<absl::Span<const uint8_t>> spans;
  for (const MatrixBytes& of : bytes) {
    switch (of.lines) {
      case MatrixBytes::Lines::kWhole:
        spans.push_back(of.data);
        break;
      case MatrixBytes::Lines::kRows:
        spans.push_back(LinesOf(of, part.row, part.num_rows));
        break;
      case MatrixBytes::Lines::kColumns:
        spans.push_back(LinesOf(of, part.column, part.num_columns));
        break;
    }
  }
  return spans;
}

}  // namespace atelier
