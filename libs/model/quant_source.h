#pragma once

#include <cstdint>
#include <memory>

#include "libs/model/dtype.h"

namespace atelier {

// Up to 256 inputs of one output row of a block-quantised matrix, as published: the coding of the
// method says which of these mean something. Codes are unsigned and as they are in the file.
// Element i of an array per group belongs to the i-th group of the inputs that were asked for.
struct QuantBlock {
  uint8_t codes[256];
  uint16_t half_scales[16];  // fp16, or bf16 where QuantMatrix::bf16_scales says so
  uint16_t half_mins[16];
  uint8_t zero_codes[16];
  uint8_t exponents[16];   // E8M0
  uint16_t super;          // fp16 of the block
  uint16_t super_min;      // fp16 of the block
  uint8_t sub_scales[16];  // unsigned or two's complement; < 16 where both share a byte
  uint8_t sub_mins[16];    // likewise < 16
  float float_scales[2];   // FP8: per 128 inputs; of the whole row, [0]
};

// Where a block-quantised matrix comes from: a published form, or a quantiser. Thread-safe.
class QuantSource {
 public:
  virtual ~QuantSource() = default;
  // Inputs [column, column + count) of output row `row`. What lies beyond `count`, and in fields
  // that the method does not have, is ignored. REQUIRES: within the matrix; count <= 256; both
  // multiples of the method's granule of k: the inputs that share a scale, at least 32, for the
  // GGUF types a block of the file. A row of FP8_BLOCK or FP8_ROW may end with any count, and
  // FP8_ROW has no granule.
  virtual void Read(int row, int column, int count, QuantBlock& out) const = 0;
};

// A block-quantised matrix whose codes and scales `method` keeps exactly.
struct QuantMatrix {
  Method method = Method::kINT4G32;
  bool bf16_scales = false;  // the 16-bit scales are bf16, not fp16
  std::shared_ptr<const QuantSource> source;
};

// The part of another source that starts at (row, column). Borrows it.
class QuantSlice final : public QuantSource {
 public:
  QuantSlice(const QuantSource& whole, int row, int column)
      : whole_(whole), row_(row), column_(column) {}

  void Read(int row, int column, int count, QuantBlock& out) const override {
    whole_.Read(row_ + row, column_ + column, count, out);
  }

 private:
  const QuantSource& whole_;
  const int row_;
  const int column_;
};

}  // namespace atelier
