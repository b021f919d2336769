#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atelier {

// What the CPU has *and* the operating system saves across context switches (CPUID and XCR0).
struct CpuFeatures {
  bool avx2_fma = false;  // AVX2 + FMA + F16C
  bool avx512 = false;    // F, BW, VL, DQ
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx_vnni = false;  // with avx2_fma: the 256-bit VEX form of VNNI

  static CpuFeatures Detect();
};

// Instruction-set levels a user may cap the kernels at (--cpu-isa), weakest first.
enum class CpuIsa { kScalar, kAvx2, kAvxVnni, kAvx512, kAuto };

// INVALID_ARGUMENT lists the valid names: scalar, avx2, avxvnni, avx512, auto.
absl::StatusOr<CpuIsa> ParseCpuIsa(absl::string_view name);
absl::string_view CpuIsaName(CpuIsa isa);

}  // namespace atelier
