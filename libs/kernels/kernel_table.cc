#include "libs/kernels/kernel_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/check.h"

namespace atelier {

// Defined in gemm/<dtype>_<isa>.cc; only the table below names them.
void Bf16Avx512Bf16(const MicroKernelArgs& args);
void Bf16Avx512(const MicroKernelArgs& args);
void Bf16Avx2(const MicroKernelArgs& args);
void Bf16Scalar(const MicroKernelArgs& args);
void Int8Avx512Vnni(const MicroKernelArgs& args);
void Int8Avx512(const MicroKernelArgs& args);
void Int8Avx2(const MicroKernelArgs& args);
void Int8Scalar(const MicroKernelArgs& args);
extern const BlockKernel kBlockAvx512VnniKernels[];
extern const BlockKernel kBlockAvx512Kernels[];
void BlockScalar(const MicroKernelArgs& args, const BlockFormat& format);

namespace {

bool Always(const CpuFeatures&) { return true; }
bool HasAvx2(const CpuFeatures& features) { return features.avx2_fma; }
bool HasAvx512(const CpuFeatures& features) { return features.avx512; }
bool HasAvx512Bf16(const CpuFeatures& features) { return features.avx512_bf16; }
bool HasAvx512Vnni(const CpuFeatures& features) { return features.avx512_vnni; }

bool LevelSupported(CpuIsa level, const CpuFeatures& features) {
  switch (level) {
    case CpuIsa::kScalar:
    case CpuIsa::kAuto:
      return true;
    case CpuIsa::kAvx2:
      return HasAvx2(features);
    case CpuIsa::kAvx512:
      return HasAvx512(features);
  }
  return false;
}

template <BlockFormat kFormat>
void BlockScalarOf(const MicroKernelArgs& args) {
  BlockScalar(args, kFormat);
}

bool SameCoding(const BlockFormat& a, const BlockFormat& b) {
  return a.bits == b.bits && a.group == b.group && a.zero_shift == b.zero_shift &&
         a.scale == b.scale && a.min == b.min && a.table == b.table;
}

MicroKernel KernelOf(const BlockFormat& format, const BlockKernel* kernels) {
  for (; kernels->kernel != nullptr; ++kernels) {
    if (SameCoding(kernels->format, format)) return kernels->kernel;
  }
  ATELIER_CHECK(false && "a coding without a kernel");
  return nullptr;
}

// The rows of one block-quantised method.
template <BlockFormat kFormat>
void AddBlockMethod(Method method, std::vector<KernelEntry>& entries) {
  entries.push_back({method, CpuIsa::kAvx512, "avx512vnni", HasAvx512Vnni,
                     KernelOf(kFormat, kBlockAvx512VnniKernels)});
  entries.push_back(
      {method, CpuIsa::kAvx512, "avx512", HasAvx512, KernelOf(kFormat, kBlockAvx512Kernels)});
  entries.push_back({method, CpuIsa::kScalar, "scalar", Always, BlockScalarOf<kFormat>});
}

std::vector<KernelEntry> MakeCandidates() {
  std::vector<KernelEntry> entries = {
      {Method::kBF16, CpuIsa::kAvx512, "avx512bf16", HasAvx512Bf16, Bf16Avx512Bf16},
      {Method::kBF16, CpuIsa::kAvx512, "avx512", HasAvx512, Bf16Avx512},
      {Method::kBF16, CpuIsa::kAvx2, "avx2", HasAvx2, Bf16Avx2},
      {Method::kBF16, CpuIsa::kScalar, "scalar", Always, Bf16Scalar},
      {Method::kINT8, CpuIsa::kAvx512, "avx512vnni", HasAvx512Vnni, Int8Avx512Vnni},
      {Method::kINT8, CpuIsa::kAvx512, "avx512", HasAvx512, Int8Avx512},
      {Method::kINT8, CpuIsa::kAvx2, "avx2", HasAvx2, Int8Avx2},
      {Method::kINT8, CpuIsa::kScalar, "scalar", Always, Int8Scalar},
  };
  AddBlockMethod<kInt4G32Format>(Method::kINT4G32, entries);
  AddBlockMethod<kInt4G64Format>(Method::kINT4G64, entries);
  AddBlockMethod<kInt4G128Format>(Method::kINT4G128, entries);
  AddBlockMethod<kInt4G32ZFormat>(Method::kINT4G32Z, entries);
  AddBlockMethod<kInt4G64ZFormat>(Method::kINT4G64Z, entries);
  AddBlockMethod<kInt4G128ZFormat>(Method::kINT4G128Z, entries);
  AddBlockMethod<kMxFp4Format>(Method::kMXFP4, entries);
  AddBlockMethod<kQ8_0Format>(Method::kQ8_0, entries);
  AddBlockMethod<kQ4_0Format>(Method::kQ4_0, entries);
  AddBlockMethod<kQ4_1Format>(Method::kQ4_1, entries);
  AddBlockMethod<kQ5_0Format>(Method::kQ5_0, entries);
  AddBlockMethod<kQ5_1Format>(Method::kQ5_1, entries);
  AddBlockMethod<kQ2_KFormat>(Method::kQ2_K, entries);
  AddBlockMethod<kQ3_KFormat>(Method::kQ3_K, entries);
  AddBlockMethod<kQ4_KFormat>(Method::kQ4_K, entries);
  AddBlockMethod<kQ5_KFormat>(Method::kQ5_K, entries);
  AddBlockMethod<kQ6_KFormat>(Method::kQ6_K, entries);
  AddBlockMethod<kIq4NlFormat>(Method::kIQ4_NL, entries);
  AddBlockMethod<kIq4XsFormat>(Method::kIQ4_XS, entries);
  return entries;
}

// The first entry that is allowed, or null; with `few`, the first that suits any number of rows.
const KernelEntry* Best(Method method, const CpuFeatures& features, CpuIsa cap, bool few) {
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (entry.method != method || entry.level > cap || !entry.supported(features)) continue;
    if (few && entry.min_rows > 0) continue;
    return &entry;
  }
  return nullptr;
}

}  // namespace

const std::vector<KernelEntry>& KernelTable::Candidates() {
  static const auto* const kCandidates = new std::vector<KernelEntry>(MakeCandidates());
  return *kCandidates;
}

absl::StatusOr<KernelTable> KernelTable::Select(const CpuFeatures& features, CpuIsa cap) {
  if (!LevelSupported(cap, features)) {
    const absl::string_view needs =
        cap == CpuIsa::kAvx2 ? "AVX2, FMA and F16C" : "AVX-512 F, BW, VL and DQ";
    return absl::FailedPreconditionError(
        absl::StrCat("cpu-isa ", CpuIsaName(cap), " needs ", needs,
                     ", which this CPU does not have or this kernel does not enable: use ",
                     features.avx2_fma ? "avx2, " : "", "scalar or auto"));
  }
  KernelTable table;
  for (const Method method : AllMethods()) {
    Choice& choice = table.choices_[static_cast<size_t>(method)];
    choice.many = Best(method, features, cap, false);
    choice.few = Best(method, features, cap, true);
    choice.min_rows = choice.many == nullptr ? 0 : choice.many->min_rows;
  }
  return table;
}

KernelTable KernelTable::ForEntry(const KernelEntry& entry) {
  KernelTable table;
  table.choices_[static_cast<size_t>(entry.method)] = {&entry, &entry, 0};
  return table;
}

MicroKernel KernelTable::kernel(Method method, int rows) const {
  const Choice& chosen = choice(method);
  ATELIER_CHECK(chosen.few != nullptr);
  return (rows >= chosen.min_rows ? chosen.many : chosen.few)->kernel;
}

const char* KernelTable::isa(Method method) const {
  ATELIER_CHECK(Has(method));
  return choice(method).many->isa;
}

std::string CapabilitiesText(const CpuFeatures& features, const KernelTable& selected) {
  std::string text = absl::StrFormat("%-14s%-12s%s\n", "method", "isa", "this CPU");
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    const bool chosen = absl::string_view(selected.isa(entry.method)) == entry.isa;
    const char* state = chosen ? "selected" : entry.supported(features) ? "yes" : "no";
    absl::StrAppendFormat(&text, "%-14s%-12s%s\n", MethodName(entry.method), entry.isa, state);
  }
  return text;
}

}  // namespace atelier
