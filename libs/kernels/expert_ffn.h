#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"
#include "libs/kernels/kernel_table.h"
#include "libs/kernels/pack.h"
#include "libs/model/activation.h"

namespace atelier {

// One expert's matrices, of one slice of the intermediate dimension. gate and up: [I, H]; down: [H,
// I]. Biases are added to the products of their matrix; null = none, else [n rounded up to
// kPanelWidth]. Gate and up have one or none, together; down's is in slice 0 only, because the
// slices' results are added.
struct ExpertView {
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
  Activation activation{};
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

// Activation rows in the form that a method multiplies (ActivationForm), zero-padded. A view.
struct ActivationRows {
  const uint8_t* data = nullptr;  // 64-byte aligned
  size_t stride = 0;              // bytes, ActivationRowBytes(method, k)
  const float* scales = nullptr;  // INT8: [rows]
  int rows = 0;
};

// Rounds (bf16) or quantises (int8, symmetric, per row or per 256 inputs) `rows` rows of k floats /
// bf16 values into `data` and `scales` (INT8 only). A row with NaN or infinity yields NaN in every
// product of that row and of no other (int8: its scales are NaN).
void PrepareRows(Method method, const float* input, size_t input_stride, int rows, int k,
                 uint8_t* data, float* scales);
void PrepareRows(Method method, const BFloat16* input, size_t input_stride, int rows, int k,
                 uint8_t* data, float* scales);

// One row that was quantised elsewhere in the method's form (QuantizeRow): the bytes that
// PrepareRows makes of the row itself. Codes of -128 count as -127; any scales are computed with.
// `scale`: INT8 only.
void PlaceQuantizedRow(Method method, const int8_t* codes, const float* scales, int k,
                       uint8_t* data, float* scale);

// out[r, c] for the output rows of panels [panel_begin, panel_end) of `weights`; column 0 of out is
// the first of them. out_stride in floats, >= 16 * (panel_end - panel_begin). No threads: the
// caller splits panels.
void Gemm(const KernelTable& table, const PackedMatrix& weights, const ActivationRows& rows,
          int panel_begin, int panel_end, float* out, size_t out_stride);

// Elements of one row's products with gate and up, of the expert's columns from first_column on.
struct GatedColumns {
  float* gate;  // [count]
  const float* up;
  size_t first_column = 0;
  size_t count = 0;
};
// Adds the expert's biases and computes its activation, in place of gate. The same bits on every
// instruction set.
void Activate(const KernelTable& table, const ExpertView& expert, const GatedColumns& columns);

// h[i] = silu(gate[i]) * up[i], in place of gate, for `count` elements. Baseline instructions.
void SwiGlu(float* gate, const float* up, size_t count);

// The same rows in the forms that gate and up multiply.
struct ExpertRows {
  ActivationRows gate;
  ActivationRows up;
};

// The whole expert for a few rows on one thread: out[r, :] = down(activation(gate x, up x)) with
// the biases, fp32, overwritten (weighting is the caller's). The executor of expert-worker splits
// the same steps over threads; tests and simple callers use this.
void RunExpertOnForms(const KernelTable& table, const ExpertView& expert, const ExpertRows& rows,
                      float* out, size_t out_stride);
// The same where gate and up multiply one form.
void RunExpert(const KernelTable& table, const ExpertView& expert, const ActivationRows& rows,
               float* out, size_t out_stride);

}  // namespace atelier
