#include "libs/kernels/vector/row_kernel_table.h"

#include "libs/base/check.h"

namespace atelier {

// Defined in vector/rows_<isa>.cc; only the list below names them.
RowKernels RowKernelsAvx512();
RowKernels RowKernelsAvx2();
RowKernels RowKernelsScalar();

std::vector<RowKernelEntry> RowKernelCandidates(const CpuFeatures& features) {
  return {{CpuIsa::kAvx512, "avx512", features.avx512, RowKernelsAvx512()},
          {CpuIsa::kAvx2, "avx2", features.avx2_fma, RowKernelsAvx2()},
          {CpuIsa::kScalar, "scalar", true, RowKernelsScalar()}};
}

RowKernels SelectRowKernels(const CpuFeatures& features, CpuIsa cap) {
  for (const RowKernelEntry& entry : RowKernelCandidates(features)) {
    if (entry.supported && entry.level <= cap) return entry.kernels;
  }
  ATELIER_CHECK(false && "scalar row kernels always qualify");
  return {};
}

}  // namespace atelier
