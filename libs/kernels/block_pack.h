#pragma once

#include <cstdint>

#include "libs/kernels/pack.h"

namespace atelier {

// 256 inputs of one output row of a block-quantised matrix, as published: the coding of a method
// (BlockFormatOf) says which of these mean something. Codes are unsigned and as they are in the
// file, before CodeTable.
struct QuantBlock {
  uint8_t codes[256];
  uint16_t half_scales[16];  // per group: fp16, or bf16 where the matrix says so
  uint16_t half_mins[16];
  uint8_t zero_codes[16];
  uint8_t exponents[16];   // E8M0
  uint16_t super;          // fp16 of the block
  uint16_t super_min;      // fp16 of the block
  uint8_t sub_scales[16];  // unsigned or two's complement; for ScaleCoding::kSuperNibble < 16
  uint8_t sub_mins[16];    // for MinCoding::kSuperNibble < 16
};

// Where a block-quantised matrix comes from: a published form, or a quantiser. Thread-safe.
class QuantSource {
 public:
  virtual ~QuantSource() = default;
  // Inputs [256 * block, 256 * block + count) of output row `row`, count <= 256. What lies beyond
  // `count` and in fields that the method does not have is ignored.
  virtual void Read(int row, int block, int count, QuantBlock& out) const = 0;
};

// Packs output rows of panels [panel_begin, panel_end) of a matrix [n, k] into `block` of
// PackedMatrixBytes(), so that threads can share one matrix. Rows n and beyond get scale 0.
// REQUIRES: a block-quantised method; block is 64-byte aligned; ValidatePackedShape.
void PackQuantMatrix(const QuantSource& source, Method method, int n, int k, int panel_begin,
                     int panel_end, uint8_t* block);

}  // namespace atelier
