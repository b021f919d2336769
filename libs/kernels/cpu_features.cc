#include "libs/kernels/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace atelier {
namespace {

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero for a leaf the CPU does not have.
CpuidLeaf Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return {};
  return out;
}

bool Bit(uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; }

// XCR0: the register states that the operating system saves. REQUIRES: CPUID says OSXSAVE.
uint64_t ReadXcr0() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Bit numbers of XCR0 (Intel SDM volume 1, 13.1): 1 SSE, 2 upper halves of YMM; 5 opmasks, 6 upper
// halves of ZMM0-15, 7 ZMM16-31; 17 tile configuration, 18 tile data.
constexpr uint64_t kYmmState = 0x06;
constexpr uint64_t kZmmState = 0xe6;
constexpr uint64_t kTileState = 0x60000;

// Linux saves the 8 KiB of tile data only for processes that asked
// (Documentation/arch/x86/xstate.rst).
int RequestTilePermission() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, Linux 5.16
  constexpr long kTileDataState = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileDataState) == 0 ? 0 : errno;
}

}  // namespace

void DetectAmx(uint32_t leaf7_edx, uint64_t xcr0, const std::function<int()>& request_permission,
               CpuFeatures& features) {
  if (!Bit(leaf7_edx, 24) || (xcr0 & kTileState) != kTileState) return;
  features.amx_refusal = request_permission();
  if (features.amx_refusal != 0) return;
  features.amx_tile = true;
  features.amx_int8 = Bit(leaf7_edx, 25);
  features.amx_bf16 = Bit(leaf7_edx, 22);
}

CpuFeatures CpuFeatures::Detect() {
  CpuFeatures features;
  const CpuidLeaf basic = Cpuid(1, 0);
  const bool osxsave = Bit(basic.ecx, 27);
  if (!osxsave) return features;
  const uint64_t xcr0 = ReadXcr0();
  const CpuidLeaf extended = Cpuid(7, 0);
  const CpuidLeaf extended1 = extended.eax >= 1 ? Cpuid(7, 1) : CpuidLeaf{};
  const bool fma = Bit(basic.ecx, 12), f16c = Bit(basic.ecx, 29), avx2 = Bit(extended.ebx, 5);
  features.avx2_fma = (xcr0 & kYmmState) == kYmmState && avx2 && fma && f16c;
  const bool f = Bit(extended.ebx, 16), dq = Bit(extended.ebx, 17);
  const bool bw = Bit(extended.ebx, 30), vl = Bit(extended.ebx, 31);
  features.avx512 = features.avx2_fma && (xcr0 & kZmmState) == kZmmState && f && dq && bw && vl;
  features.avx512_vnni = features.avx512 && Bit(extended.ecx, 11);
  features.avx512_bf16 = features.avx512 && Bit(extended1.eax, 5);
  features.avx512_vbmi = features.avx512 && Bit(extended.ecx, 1);
  features.avx_vnni = features.avx2_fma && Bit(extended1.eax, 4);
  DetectAmx(extended.edx, xcr0, RequestTilePermission, features);
  return features;
}

absl::StatusOr<CpuIsa> ParseCpuIsa(absl::string_view name) {
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512,
                     CpuIsa::kAmx, CpuIsa::kAuto}) {
    if (name == CpuIsaName(isa)) return isa;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cpu-isa \"", name, "\" is unknown: use scalar, avx2, avxvnni, avx512, amx or auto"));
}

absl::string_view CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvxVnni:
      return "avxvnni";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAmx:
      return "amx";
    case CpuIsa::kAuto:
      break;
  }
  return "auto";
}

}  // namespace atelier
