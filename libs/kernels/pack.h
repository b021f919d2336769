#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"
#include "libs/model/dtype.h"

namespace atelier {

// The packed layout, version 1 (docs/weight-layout.md has it byte by byte): the N output rows in
// panels of kPanelWidth, K in groups of 4 bytes (2 bf16 or 4 int8), K padded with zeros to
// kGroupsPerBlock groups, N padded with zero rows to a whole panel. So one layout feeds AVX2,
// AVX-512 VNNI/BF16 and AMX tiles.
inline constexpr int kPackedLayoutVersion = 1;
inline constexpr int kPanelWidth = 16;
inline constexpr int kGroupBytes = 4;
// K is padded to 64 bytes of one row: one AMX tile row, one cache line.
inline constexpr int kRowAlignBytes = 64;

// A weight matrix [n, k] (PyTorch Linear order: y[n] = sum_k w[n, k] x[k]) in the packed layout. A
// view.
struct PackedMatrix {
  Method method = Method::kBF16;
  int n = 0;                          // logical output rows
  int k = 0;                          // logical inputs
  const uint8_t* data = nullptr;      // PackedDataBytes(method, n, k), 64-byte aligned
  const float* row_scales = nullptr;  // INT8: [n rounded up to kPanelWidth]; else null
  const int32_t* row_sums =
      nullptr;  // INT8: [likewise] sum over k of the signed codes, corrects u8 x s8; else null

  int num_panels() const { return (n + kPanelWidth - 1) / kPanelWidth; }
};

// Bytes of K of one row after padding (a multiple of kRowAlignBytes), of one panel, and of the
// whole data array.
size_t PaddedRowBytes(Method method, int k);
size_t PanelBytes(Method method, int k);
size_t PackedDataBytes(Method method, int n, int k);

// Bytes of data + scales + sums in one allocation, each part 64-byte aligned, and the view into
// such a block.
size_t PackedMatrixBytes(Method method, int n, int k);
PackedMatrix PackedMatrixAt(Method method, int n, int k, const uint8_t* block);

// Source of a pack: element (row, col) of a row-major matrix of any readable dtype, row stride in
// elements.
struct WeightSource {
  DType dtype = DType::kBF16;  // kBF16, kF16 or kF32
  const void* data = nullptr;  // element (0, 0) of the part to pack; may be unaligned
  size_t row_stride = 0;       // elements
};

// Packs (and for INT8 quantises: symmetric, scale = amax / 127 per output row, round to nearest
// even) n rows of k columns into `block` of PackedMatrixBytes(). Panels [panel_begin, panel_end)
// only, so that threads can share one matrix. REQUIRES: block is 64-byte aligned; source covers [n,
// k].
void PackMatrix(const WeightSource& source, Method method, int n, int k, int panel_begin,
                int panel_end, uint8_t* block);

}  // namespace atelier
