#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/model/dtype.h"

namespace atelier {

// One row of the support matrix: a micro-kernel and what it needs.
struct KernelEntry {
  Method method;
  CpuIsa level;     // the cap under which it may be chosen
  const char* isa;  // full name for people: "scalar", "avx2", "avx512bf16", "avx512vnni", …
  bool (*supported)(const CpuFeatures&);
  MicroKernel kernel;
};

// The micro-kernels chosen for this process, one per method. Immutable after Select; pass by const
// reference.
class KernelTable {
 public:
  // All entries, best first per method. The order is the preference.
  static const std::vector<KernelEntry>& Candidates();

  // The best supported entry per method not above `cap`. FAILED_PRECONDITION when `cap` itself
  // needs what the CPU or the kernel does not have (naming what is missing).
  static absl::StatusOr<KernelTable> Select(const CpuFeatures& features, CpuIsa cap);
  // A table with exactly the given entry, which must outlive it; for tests of one ISA.
  static KernelTable ForEntry(const KernelEntry& entry);

  const MicroKernel& kernel(Method method) const { return entry(method).kernel; }
  const char* isa(Method method) const { return entry(method).isa; }

 private:
  const KernelEntry& entry(Method method) const;

  const KernelEntry* bf16_ = nullptr;
  const KernelEntry* int8_ = nullptr;
};

// The method x ISA matrix as text, from Candidates(), marking what these features support and what
// is selected.
std::string CapabilitiesText(const CpuFeatures& features, const KernelTable& selected);

}  // namespace atelier
