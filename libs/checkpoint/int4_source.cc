#include "libs/checkpoint/int4_source.h"

#include <cstring>

namespace atelier {

uint8_t NibbleLayout::At(size_t row, size_t column) const {
  const size_t word = (row >> row_shift) * row_stride + (column >> column_shift) * column_stride;
  const size_t lane = (row_shift > 0 ? row : column) % 8;
  // Two nibbles of each byte, the lower first: no word has to be read whole.
  const uint8_t nibble = nibbles[lane];
  return static_cast<uint8_t>(data[word * 4 + nibble / 2] >> (nibble % 2 * 4) & 15);
}

uint16_t ScaleLayout::At(size_t row, size_t group) const {
  uint16_t bits;
  std::memcpy(&bits, data + (row * row_stride + group * group_stride) * sizeof(bits), sizeof(bits));
  return bits;
}

void Int4Source::Read(int row, int column, int count, QuantBlock& out) const {
  const size_t r = static_cast<size_t>(row);
  const size_t first = static_cast<size_t>(column), n = static_cast<size_t>(count);
  for (size_t i = 0; i < n; ++i) out.codes[i] = layout_.codes.At(r, first + i);
  for (size_t j = 0; j * layout_.method_group < n; ++j) {
    const size_t group = (first + j * layout_.method_group) / layout_.scale_group;
    out.half_scales[j] = layout_.scales.At(r, group);
    if (layout_.zeros.data == nullptr) continue;
    out.zero_codes[j] = static_cast<uint8_t>(layout_.zeros.At(r, group) + layout_.zero_offset);
  }
}

void MxFp4Source::Read(int row, int column, int count, QuantBlock& out) const {
  const size_t r = layout_.first_row + static_cast<size_t>(row) * layout_.row_step;
  const size_t first = r * layout_.columns + static_cast<size_t>(column);
  const size_t n = static_cast<size_t>(count);
  for (size_t i = 0; i < n; ++i) {
    out.codes[i] = static_cast<uint8_t>(layout_.codes[(first + i) / 2] >> (i % 2 * 4) & 15);
  }
  std::memcpy(out.exponents, layout_.scales + first / 32, n / 32);
}

}  // namespace atelier
