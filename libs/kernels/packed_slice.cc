#include "libs/kernels/packed_slice.h"

#include "libs/base/check.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/gemm/fp8_layout-inl.h"

namespace atelier {
namespace {

// Inputs after which a panel may be cut; 0 = nowhere.
int InputBlock(Method method) {
  if (method == Method::kINT8 || method == Method::kFP8_ROW) return 0;
  if (IsFp8(method)) return static_cast<int>(kFp8BlockK);
  if (BlockFormatOf(method) != nullptr) return kBlockK;
  return kRowAlignBytes / 2;  // BF16
}

size_t PanelStride(const PackedMatrix& matrix) {
  return matrix.panel_stride > 0 ? matrix.panel_stride : PanelBytes(matrix.method, matrix.k);
}

}  // namespace

PackedMatrix SliceOutputs(const PackedMatrix& matrix, int begin, int n) {
  ATELIER_DCHECK(begin % kPanelWidth == 0 && begin + n <= matrix.n);
  PackedMatrix slice = matrix;
  slice.n = n;
  slice.data += static_cast<size_t>(begin / kPanelWidth) * PanelStride(matrix);
  if (slice.row_scales != nullptr) slice.row_scales += begin;
  return slice;
}

bool CanSliceInputs(Method method, int whole, int begin, int k) {
  if (begin == 0 && k == whole) return true;
  const int block = InputBlock(method);
  return block > 0 && begin % block == 0 && (k % block == 0 || begin + k == whole);
}

PackedMatrix SliceInputs(const PackedMatrix& matrix, int begin, int k) {
  ATELIER_DCHECK(CanSliceInputs(matrix.method, matrix.k, begin, k));
  PackedMatrix slice = matrix;
  slice.k = k;
  slice.panel_stride = PanelStride(matrix);
  // Whole blocks take as many bytes before the slice as they would alone.
  if (begin > 0) slice.data += PanelBytes(matrix.method, begin);
  return slice;
}

}  // namespace atelier
