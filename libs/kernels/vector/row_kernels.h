#pragma once

#include <cstddef>
#include <cstdint>

// Plain C types only, as gemm/micro_kernel.h says and for the same reason.

namespace atelier {

// Products of one fp32 vector with rows that stay in memory as they are: attention over a KV cache
// (bf16) and routers (fp32), where nothing is packed. bf16 bits are passed as uint16_t. Each result
// depends only on its own operands, not on `count`.
struct RowKernels {
  // out[i] = sum_j x[j] * rows[i * stride + j] for i in [0, count), j in [0, width); fp32 sums,
  // fixed order per ISA.
  void (*dot_bf16)(const float* x, const uint16_t* rows, size_t stride, int count, int width,
                   float* out);
  void (*dot_f32)(const float* x, const float* rows, size_t stride, int count, int width,
                  float* out);
  // sums[j] += weights[i] * rows[i * stride + j], i ascending.
  void (*add_weighted_bf16)(const float* weights, const uint16_t* rows, size_t stride, int count,
                            int width, float* sums);
};

}  // namespace atelier
