#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/kernels/cpu_features.h"
#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/vector/gated_kernel.h"
#include "libs/model/dtype.h"

namespace atelier {

// One row of the support matrix: a micro-kernel and what it needs.
struct KernelEntry {
  Method method;
  CpuIsa level;     // the cap under which it may be chosen
  const char* isa;  // full name for people: "scalar", "avx2", "avx512bf16", "avx512vnni", …
  bool (*supported)(const CpuFeatures&);
  MicroKernel kernel;
  int min_rows = 0;  // fewer rows of an expert than this are better served by the next entry
};

// The micro-kernels chosen for this process: per method one for many rows of an expert and one for
// few (often the same). Immutable after Select; pass by const reference.
class KernelTable {
 public:
  // All entries, best first per method. The order is the preference.
  static const std::vector<KernelEntry>& Candidates();

  // The best supported entry per method not above `cap`. FAILED_PRECONDITION when `cap` itself
  // needs what the CPU or the kernel does not have (naming what is missing).
  static absl::StatusOr<KernelTable> Select(const CpuFeatures& features, CpuIsa cap);
  // A table with exactly the given entry for any number of rows; for tests of one ISA. The entry
  // must outlive it.
  static KernelTable ForEntry(const KernelEntry& entry);

  MicroKernel kernel(Method method, int rows) const;
  const char* isa(Method method) const;  // the kernel's for many rows
  GatedKernel gated() const { return gated_; }

 private:
  struct Choice {
    const KernelEntry* many = nullptr;
    const KernelEntry* few = nullptr;
    int min_rows = 0;  // of `many`
  };
  const Choice& choice(Method method) const { return choices_[static_cast<size_t>(method)]; }

  std::array<Choice, static_cast<size_t>(Method::kIQ4_XS) + 1> choices_{};
  GatedKernel gated_ = nullptr;
};

// What is missing and why, for people. REQUIRES: features.amx_refusal != 0.
std::string AmxRefusalText(const CpuFeatures& features);

// The method x ISA matrix as text, from Candidates(), marking what these features support and what
// is selected.
std::string CapabilitiesText(const CpuFeatures& features, const KernelTable& selected);

}  // namespace atelier
