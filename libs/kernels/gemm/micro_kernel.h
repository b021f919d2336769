#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/block_format.h"

// Plain C types only: ISA-specific files include nothing but <immintrin.h>, <cstdint>, <cstddef>,
// this header and gemm/*-inl.h (all of it in an anonymous namespace), so that no inline function
// compiled with -mavx512f can be merged into baseline code.

namespace atelier {

// What a micro-kernel reads and writes. Rows are activations in the method's own form
// (expert_ffn.h, ActivationForm); panels are those of libs/kernels/pack.h.
struct MicroKernelArgs {
  const uint8_t* activations;      // row r at activations + r * activation_stride; zero-padded
  size_t activation_stride;        // bytes, >= what the form needs
  const float* activation_scales;  // INT8: [rows]; else null
  int rows;                        // >= 0
  const uint8_t* panels;           // first panel to compute, 64-byte aligned
  size_t panel_bytes;              // from one panel to the next
  size_t padded_k_bytes;           // BF16, INT8: of one row of a panel, a multiple of 64; else 0
  int k;                           // inputs; block formats: a multiple of their group
  const BlockFormat* format;       // of the weights; null for BF16, INT8 and FP8
  const float* row_scales;         // INT8: of the first panel's first output row; else null
  bool bf16_scales;                // block formats: ScaleCoding::kHalf is bf16, not fp16
  int num_panels;                  // >= 0
  float* out;                      // [rows, out_stride]; 16 columns a panel, overwritten
  size_t out_stride;               // floats, >= 16 * num_panels
};

// out[r, c] = sum_k activation[r, k] * weight[c, k], with the scales of both, fp32. A row's bits
// depend on nothing but that row, the weights and the ISA: not on rows, num_panels or position.
using MicroKernel = void (*)(const MicroKernelArgs& args);

// The kernel of one coding, and those of an instruction set: data, because choosing a kernel must
// not run code of that instruction set.
struct BlockKernel {
  BlockFormat format;
  MicroKernel kernel;
};
struct BlockKernels {
  const BlockKernel* begin;
  const BlockKernel* end;
};

// Those of the FP8 methods, by where their scales are.
struct Fp8Kernels {
  MicroKernel block;
  MicroKernel row;
  MicroKernel mx;
};

}  // namespace atelier
