#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/base/float16.h"
#include "libs/kernels/kernel_table.h"
#include "libs/kernels/pack.h"

namespace atelier {

enum class Activation { kSwiGlu };

// One expert's matrices, of one slice of the intermediate dimension. gate and up: [I, H]; down: [H,
// I].
struct ExpertView {
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
  Activation activation = Activation::kSwiGlu;
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

// out[r, c] for the output rows of panels [panel_begin, panel_end) of `weights`; column 0 of out is
// the first of them. out_stride in floats, >= 16 * (panel_end - panel_begin). No threads: the
// caller splits panels.
void Gemm(const KernelTable& table, const PackedMatrix& weights, const ActivationRows& rows,
          int panel_begin, int panel_end, float* out, size_t out_stride);

// h[r, c] = silu(gate[r, c]) * up[r, c], in place of gate. `count` elements.
void SwiGlu(float* gate, const float* up, size_t count);

// The same rows in the forms that gate and up multiply.
struct ExpertRows {
  ActivationRows gate;
  ActivationRows up;
};

// The whole expert for a few rows on one thread: out[r, :] = down(silu(gate x) * (up x)), fp32,
// overwritten (weighting is the caller's). The executor of expert-worker splits the same steps over
// threads; tests and simple callers use this.
void RunExpert(const KernelTable& table, const ExpertView& expert, const ExpertRows& rows,
               float* out, size_t out_stride);
// The same where gate and up multiply one form.
void RunExpert(const KernelTable& table, const ExpertView& expert, const ActivationRows& rows,
               float* out, size_t out_stride);

}  // namespace atelier
