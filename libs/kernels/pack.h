#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "libs/base/float16.h"
#include "libs/kernels/gemm/block_format.h"
#include "libs/model/activation_form.h"
#include "libs/model/dtype.h"

namespace atelier {

// The packed layout, version 2 (docs/weight-layout.md has it byte by byte): the N output rows in
// panels of kPanelWidth, K in groups of kGroupBytes (2 bf16 or 4 int8), K padded with zeros to
// kRowAlignBytes, N padded with zero rows to a whole panel. So one layout feeds AVX2, AVX-512
// VNNI/BF16 and AMX tiles.
inline constexpr int kPackedLayoutVersion = 2;
inline constexpr int kPanelWidth = 16;
inline constexpr int kGroupBytes = 4;
// K is padded to 64 bytes of one row: one AMX tile row, one cache line.
inline constexpr int kRowAlignBytes = 64;

// INT8 weights are kept unsigned, code + kInt8WeightOffset, and multiplied with signed activations
// (u8 x s8); the kernels take kInt8WeightOffset * sum(activations of the row) off again.
inline constexpr int kInt8WeightOffset = 128;

// Longest K. INT8: K * 127 * 127, the largest possible sum, fits int32. Others: the error bounds of
// docs/numerics.md hold.
constexpr int MaxPackedK(Method method) { return method == Method::kINT8 ? 1 << 17 : 1 << 23; }

// How the activations are given that a method's weights are multiplied with.
ActivationForm ActivationFormOf(Method method);

// The coding of a block-quantised method; null for BF16, INT8 and FP8.
const BlockFormat* BlockFormatOf(Method method);

// E4M3 codes, multiplied with bf16 activations.
bool IsFp8(Method method);

// K of a matrix is a multiple of this: the inputs that share a scale (and for the GGUF types a
// block of the file); 1 where a shorter last group is part of the format.
int KMultiple(Method method);
// A slice of K begins at a multiple of this, so that no group of a scale is cut: KMultiple, and for
// FP8_BLOCK 128. Slices of N begin anywhere.
int KSliceMultiple(Method method);

// A weight matrix [n, k] (PyTorch Linear order: y[n] = sum_k w[n, k] x[k]) in the packed layout. A
// view.
struct PackedMatrix {
  Method method = Method::kBF16;
  int n = 0;                          // logical output rows
  int k = 0;                          // logical inputs
  const uint8_t* data = nullptr;      // PackedDataBytes(method, n, k), 64-byte aligned
  const float* row_scales = nullptr;  // INT8: [n rounded up to kPanelWidth]; else null
  size_t panel_stride = 0;            // bytes from one panel to the next; 0 = PanelBytes(method, k)
  bool bf16_scales = false;           // INT4: scales are bf16 as published, not fp16

  int num_panels() const { return (n + kPanelWidth - 1) / kPanelWidth; }
};

// INVALID_ARGUMENT naming the value when a matrix [n, k] is outside what the kernels compute
// exactly: n >= 0, 1 <= k <= MaxPackedK(method), k a multiple of KMultiple(method). For shapes that
// come from a file; the functions below require it.
absl::Status ValidatePackedShape(Method method, int n, int k);

// BF16 and INT8: bytes of K of one row of weights after padding (a multiple of kRowAlignBytes).
size_t PaddedRowBytes(Method method, int k);
// Bytes from one row of activations in the method's form to the next, an odd multiple of 64.
size_t ActivationRowBytes(Method method, int k);
// Bytes of one panel, and of the whole data array.
size_t PanelBytes(Method method, int k);
size_t PackedDataBytes(Method method, int n, int k);

// Bytes of data + scales in one allocation, each part 64-byte aligned, and the view into such a
// block.
size_t PackedMatrixBytes(Method method, int n, int k);
PackedMatrix PackedMatrixAt(Method method, int n, int k, const uint8_t* block);

// Source of a pack: element (row, col) of a row-major matrix of any readable dtype, row stride in
// elements.
struct WeightSource {
  DType dtype = DType::kBF16;  // kBF16, kF16 or kF32
  const void* data = nullptr;  // element (0, 0) of the part to pack; may be unaligned
  size_t row_stride = 0;       // elements
};

// Elements (row, column) … (row, column + count - 1) as floats, exactly.
void ReadWeights(const WeightSource& source, int row, int column, int count, float* out);

// The methods of TakesFloats() (quantizer.h): packs (and for INT8 quantises:
// symmetric, scale = amax / 127 per output row, round to nearest even; for the others as
// QuantizingSource says) n rows of k columns into `block` of PackedMatrixBytes(). Panels
// [panel_begin, panel_end) only, so that threads can share one matrix. A NaN or infinity in an INT8
// row makes that row's scale, and so its outputs, NaN. REQUIRES: block is 64-byte aligned; source
// covers [n, k]; ValidatePackedShape.
void PackMatrix(const WeightSource& source, Method method, int n, int k, int panel_begin,
                int panel_end, uint8_t* block);

}  // namespace atelier
