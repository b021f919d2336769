#pragma once

#include <cstddef>

// Plain C types only, as gemm/micro_kernel.h says and for the same reason.

namespace atelier {

// Elements of the intermediate row of one expert. The biases are added first; the rest is
// Activation (libs/model/activation.h).
struct GatedArgs {
  float* gate;             // [count], replaced by the result
  const float* up;         // [count]
  const float* gate_bias;  // [count]; null = none, then up_bias is null too
  const float* up_bias;
  size_t count;
  bool swiglu;  // the four below have no effect, and are not computed
  float alpha;
  float gate_min;
  float limit;
  float up_offset;
};

// Every implementation gives an element the same bits, whatever its position.
using GatedKernel = void (*)(const GatedArgs& args);

}  // namespace atelier
