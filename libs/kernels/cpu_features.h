#pragma once

#include <cstdint>
#include <functional>
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
  bool avx512_vbmi = false;
  bool avx_vnni = false;  // with avx2_fma: the 256-bit VEX form of VNNI
  bool amx_tile = false;  // and the kernel permits this process to use tiles
  bool amx_int8 = false;
  bool amx_bf16 = false;
  // Where CPU and operating system have AMX, but the kernel refused this process the permission for
  // tile data (arch_prctl): the errno. Then the three above are false.
  int amx_refusal = 0;

  // Asks the kernel for the permission to use AMX tiles, for all threads of the process, where
  // there are any. Cheap and repeatable.
  static CpuFeatures Detect();
};

// The part of Detect() about AMX: from EDX of CPUID leaf 7 and from XCR0. `request_permission`
// gives 0 or an errno; it is called only where these two have tiles.
void DetectAmx(uint32_t leaf7_edx, uint64_t xcr0, const std::function<int()>& request_permission,
               CpuFeatures& features);

// Instruction-set levels a user may cap the kernels at (--cpu-isa), weakest first.
enum class CpuIsa { kScalar, kAvx2, kAvxVnni, kAvx512, kAmx, kAuto };

// INVALID_ARGUMENT lists the valid names: scalar, avx2, avxvnni, avx512, amx, auto.
absl::StatusOr<CpuIsa> ParseCpuIsa(absl::string_view name);
absl::string_view CpuIsaName(CpuIsa isa);

}  // namespace atelier
