#pragma once

#include <vector>

#include "libs/kernels/cpu_features.h"
#include "libs/kernels/vector/row_kernels.h"

namespace atelier {

struct RowKernelEntry {
  CpuIsa level;
  const char* isa;
  bool supported;  // by the features asked about
  RowKernels kernels;
};

// Every implementation, best first.
std::vector<RowKernelEntry> RowKernelCandidates(const CpuFeatures& features);

// The best that `features` support and `cap` allows; scalar always qualifies.
RowKernels SelectRowKernels(const CpuFeatures& features, CpuIsa cap);

}  // namespace atelier
