#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/model/quant_source.h"

namespace atelier {

// Where 4-bit numbers of a matrix lie in little-endian 32-bit words: the word of (row, column) is
// row >> row_shift times row_stride + column >> column_shift times column_stride (in words); the
// eight numbers of a word belong to consecutive rows or columns.
struct NibbleLayout {
  const uint8_t* data = nullptr;  // may be unaligned
  size_t row_stride = 0;
  size_t column_stride = 0;
  int row_shift = 0;     // 3 where a word holds eight rows, else 0
  int column_shift = 0;  // 3 where a word holds eight columns, else 0
  // Which nibble holds number 0…7 of a word; AWQ interleaves them.
  uint8_t nibbles[8] = {0, 1, 2, 3, 4, 5, 6, 7};

  uint8_t At(size_t row, size_t column) const;
};

// 16-bit scales of (row, group).
struct ScaleLayout {
  const uint8_t* data = nullptr;  // may be unaligned
  size_t row_stride = 0;          // elements
  size_t group_stride = 0;

  uint16_t At(size_t row, size_t group) const;
};

// INT4 as compressed-tensors, GPTQ and AWQ publish it: codes 0…15, scales and perhaps zero points
// per group. Borrows the file's bytes.
class Int4Source final : public QuantSource {
 public:
  struct Layout {
    NibbleLayout codes;
    ScaleLayout scales;
    NibbleLayout zeros;       // by (row, group); data null = symmetric
    int zero_offset = 0;      // added to stored zero points
    size_t method_group = 0;  // inputs per scale that readers are given …
    size_t scale_group = 0;   // … and that share one in the file: a multiple
  };

  explicit Int4Source(const Layout& layout) : layout_(layout) {}

  void Read(int row, int column, int count, QuantBlock& out) const override;

 private:
  const Layout layout_;
};

// MXFP4: two codes a byte, the even column in the low half; a byte of scale per 32 columns. Row r
// of the matrix is row first_row + r * row_step of the file's. Borrows the file's bytes.
class MxFp4Source final : public QuantSource {
 public:
  struct Layout {
    const uint8_t* codes = nullptr;
    const uint8_t* scales = nullptr;
    size_t columns = 0;
    size_t first_row = 0;
    size_t row_step = 1;
  };

  explicit MxFp4Source(const Layout& layout) : layout_(layout) {}

  void Read(int row, int column, int count, QuantBlock& out) const override;

 private:
  const Layout layout_;
};

}  // namespace atelier
