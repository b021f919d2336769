#pragma once

#include <cstddef>
#include <cstdint>

// Plain C types only: ISA-specific files include nothing but <immintrin.h>, <cstdint>, <cstddef>
// and this header, so that no inline function compiled with -mavx512f can be merged into baseline
// code.

namespace atelier {

// What a micro-kernel reads of the activations: rows in the method's own form (bf16, or int8 with a
// scale per row).
struct MicroKernelArgs {
  const uint8_t*
      activations;  // row r at activations + r * activation_stride; zero-padded to padded_k_bytes
  size_t activation_stride;        // bytes
  const float* activation_scales;  // INT8: [rows]; else null
  int rows;                        // >= 0
  const uint8_t* panels;           // first panel to compute
  size_t panel_bytes;
  size_t padded_k_bytes;    // a multiple of 64
  const float* row_scales;  // INT8: of the first panel's first output row; else null
  const int32_t* row_sums;  // INT8: likewise; else null
  int num_panels;
  float* out;  // [rows, out_stride]; column 0 = first output row of the first panel; 16 columns a
               // panel
  size_t out_stride;  // floats, >= 16 * num_panels
};

// out[r, c] = sum_k activation[r, k] * weight[c, k] (times both scales for INT8), fp32 out,
// overwritten. A row's bits depend on nothing but that row, the weights and the ISA: not on rows,
// num_panels or position.
struct MicroKernel {
  void (*gemm)(const MicroKernelArgs& args);
};

}  // namespace atelier
