#include "libs/kernels/kernel_table.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "libs/base/check.h"
#include "libs/kernels/pack.h"

namespace atelier {

// Defined in gemm/<dtype>_<isa>.cc; only the table below names them.
void Bf16Amx(const MicroKernelArgs& args);
void Bf16Avx512Bf16(const MicroKernelArgs& args);
void Bf16Avx512(const MicroKernelArgs& args);
void Bf16Avx2(const MicroKernelArgs& args);
void Bf16Scalar(const MicroKernelArgs& args);
void Int8Amx(const MicroKernelArgs& args);
void Int8Avx512Vnni(const MicroKernelArgs& args);
void Int8Avx512(const MicroKernelArgs& args);
void Int8AvxVnni(const MicroKernelArgs& args);
void Int8Avx2(const MicroKernelArgs& args);
void Int8Scalar(const MicroKernelArgs& args);
extern const BlockKernels kBlockAmxKernels;
extern const BlockKernels kBlockAvx512VnniKernels;
extern const BlockKernels kBlockAvx512Kernels;
extern const BlockKernels kBlockAvxVnniKernels;
extern const BlockKernels kBlockAvx2Kernels;
void BlockScalar(const MicroKernelArgs& args);
extern const Fp8Kernels kFp8AmxKernels;
extern const Fp8Kernels kFp8Avx512Bf16Kernels;
extern const Fp8Kernels kFp8Avx512Kernels;
extern const Fp8Kernels kFp8Avx2Kernels;
extern const Fp8Kernels kFp8ScalarKernels;
// In vector/.
void GatedAvx512(const GatedArgs& args);
void GatedAvx2(const GatedArgs& args);
void GatedScalar(const GatedArgs& args);

namespace {

bool Always(const CpuFeatures&) { return true; }
bool HasAvx2(const CpuFeatures& features) { return features.avx2_fma; }
bool HasAvxVnni(const CpuFeatures& features) { return features.avx_vnni; }
bool HasAvx512(const CpuFeatures& features) { return features.avx512; }
bool HasAvx512Bf16(const CpuFeatures& features) { return features.avx512_bf16; }
bool HasAvx512Bf16Vbmi(const CpuFeatures& features) {
  return features.avx512_bf16 && features.avx512_vbmi;
}
bool HasAvx512Vnni(const CpuFeatures& features) { return features.avx512_vnni; }

// The AMX kernels use AVX-512 beside the tiles; every CPU with AMX has it.
bool HasAmxInt8(const CpuFeatures& features) {
  return features.avx512 && features.amx_tile && features.amx_int8;
}
bool HasAmxBf16(const CpuFeatures& features) {
  return features.avx512 && features.amx_tile && features.amx_bf16;
}

// Rows of an expert from which tiles are used. UNMEASURED: no machine with AMX was at hand. From
// published figures: a product of tiles takes 16 cycles for up to 16 rows; the same work on one row
// takes 8 cycles of vpdpbusd or 16 of vdpbf16ps (docs/performance.md).
constexpr int kAmxMinRows = 4;
// Of block-quantised methods: the sums of a tile are scaled for 16 rows, however few there are.
constexpr int kAmxMinBlockRows = 8;

bool LevelSupported(CpuIsa level, const CpuFeatures& features) {
  switch (level) {
    case CpuIsa::kScalar:
    case CpuIsa::kAuto:
      return true;
    case CpuIsa::kAvx2:
      return HasAvx2(features);
    case CpuIsa::kAvxVnni:
      return HasAvxVnni(features);
    case CpuIsa::kAvx512:
      return HasAvx512(features);
    case CpuIsa::kAmx:
      return HasAmxInt8(features) && HasAmxBf16(features);
  }
  return false;
}

absl::string_view Needs(CpuIsa level) {
  switch (level) {
    case CpuIsa::kScalar:
    case CpuIsa::kAuto:
      return "nothing";
    case CpuIsa::kAvx2:
      return "AVX2, FMA and F16C";
    case CpuIsa::kAvxVnni:
      return "AVX-VNNI with AVX2, FMA and F16C";
    case CpuIsa::kAvx512:
      return "AVX-512 F, BW, VL and DQ";
    case CpuIsa::kAmx:
      return "AMX-TILE, AMX-INT8, AMX-BF16 and AVX-512";
  }
  return "";
}

bool SameCoding(const BlockFormat& a, const BlockFormat& b) {
  return a.bits == b.bits && a.group == b.group && a.zero_shift == b.zero_shift &&
         a.scale == b.scale && a.min == b.min && a.table == b.table;
}

// What `level` needs and these features lack.
std::string WhatIsMissing(CpuIsa level, const CpuFeatures& features) {
  if (level == CpuIsa::kAmx && features.amx_refusal != 0) return AmxRefusalText(features);
  return absl::StrCat(Needs(level),
                      ", which this CPU does not have or this kernel does not enable");
}

// The levels below `level` that work, for people.
std::string UsableInstead(CpuIsa level, const CpuFeatures& features) {
  return absl::StrCat(level == CpuIsa::kAmx && features.avx512 ? "avx512, " : "",
                      level > CpuIsa::kAvx2 && features.avx2_fma ? "avx2, " : "", "scalar or auto");
}

MicroKernel KernelOf(const BlockFormat& format, const BlockKernels& kernels) {
  const BlockKernel* found = std::find_if(
      kernels.begin, kernels.end,
      [&format](const BlockKernel& kernel) { return SameCoding(kernel.format, format); });
  ATELIER_CHECK(found != kernels.end);
  return found->kernel;
}

MicroKernel KernelOf(Method method, const Fp8Kernels& kernels) {
  if (method == Method::kFP8_BLOCK) return kernels.block;
  return method == Method::kFP8_ROW ? kernels.row : kernels.mx;
}

void AddFp8Kernels(Method method, std::vector<KernelEntry>& entries) {
  entries.push_back(
      {method, CpuIsa::kAmx, "amx", HasAmxBf16, KernelOf(method, kFp8AmxKernels), kAmxMinRows});
  entries.push_back({method, CpuIsa::kAvx512, "avx512bf16", HasAvx512Bf16Vbmi,
                     KernelOf(method, kFp8Avx512Bf16Kernels)});
  entries.push_back(
      {method, CpuIsa::kAvx512, "avx512", HasAvx512, KernelOf(method, kFp8Avx512Kernels)});
  entries.push_back({method, CpuIsa::kAvx2, "avx2", HasAvx2, KernelOf(method, kFp8Avx2Kernels)});
  entries.push_back(
      {method, CpuIsa::kScalar, "scalar", Always, KernelOf(method, kFp8ScalarKernels)});
}

std::vector<KernelEntry> MakeCandidates() {
  std::vector<KernelEntry> entries = {
      {Method::kBF16, CpuIsa::kAmx, "amx", HasAmxBf16, Bf16Amx, kAmxMinRows},
      {Method::kBF16, CpuIsa::kAvx512, "avx512bf16", HasAvx512Bf16, Bf16Avx512Bf16},
      {Method::kBF16, CpuIsa::kAvx512, "avx512", HasAvx512, Bf16Avx512},
      {Method::kBF16, CpuIsa::kAvx2, "avx2", HasAvx2, Bf16Avx2},
      {Method::kBF16, CpuIsa::kScalar, "scalar", Always, Bf16Scalar},
      {Method::kINT8, CpuIsa::kAmx, "amx", HasAmxInt8, Int8Amx, kAmxMinRows},
      {Method::kINT8, CpuIsa::kAvx512, "avx512vnni", HasAvx512Vnni, Int8Avx512Vnni},
      {Method::kINT8, CpuIsa::kAvx512, "avx512", HasAvx512, Int8Avx512},
      {Method::kINT8, CpuIsa::kAvxVnni, "avxvnni", HasAvxVnni, Int8AvxVnni},
      {Method::kINT8, CpuIsa::kAvx2, "avx2", HasAvx2, Int8Avx2},
      {Method::kINT8, CpuIsa::kScalar, "scalar", Always, Int8Scalar},
  };
  for (const Method method : AllMethods()) {
    if (IsFp8(method)) AddFp8Kernels(method, entries);
    const BlockFormat* format = BlockFormatOf(method);
    if (format == nullptr) continue;
    entries.push_back({method, CpuIsa::kAmx, "amx", HasAmxInt8, KernelOf(*format, kBlockAmxKernels),
                       kAmxMinBlockRows});
    entries.push_back({method, CpuIsa::kAvx512, "avx512vnni", HasAvx512Vnni,
                       KernelOf(*format, kBlockAvx512VnniKernels)});
    entries.push_back(
        {method, CpuIsa::kAvx512, "avx512", HasAvx512, KernelOf(*format, kBlockAvx512Kernels)});
    entries.push_back(
        {method, CpuIsa::kAvxVnni, "avxvnni", HasAvxVnni, KernelOf(*format, kBlockAvxVnniKernels)});
    entries.push_back(
        {method, CpuIsa::kAvx2, "avx2", HasAvx2, KernelOf(*format, kBlockAvx2Kernels)});
    entries.push_back({method, CpuIsa::kScalar, "scalar", Always, BlockScalar});
  }
  return entries;
}

// The first entry that is allowed; with `few`, the first that suits any number of rows.
const KernelEntry* Best(Method method, const CpuFeatures& features, CpuIsa cap, bool few) {
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (entry.method != method || entry.level > cap || !entry.supported(features)) continue;
    if (few && entry.min_rows > 0) continue;
    return &entry;
  }
  ATELIER_CHECK(false && "every method has a scalar kernel");
  return nullptr;
}

GatedKernel BestGated(const CpuFeatures& features, CpuIsa cap) {
  if (features.avx512 && cap >= CpuIsa::kAvx512) return GatedAvx512;
  if (features.avx2_fma && cap >= CpuIsa::kAvx2) return GatedAvx2;
  return GatedScalar;
}

}  // namespace

const std::vector<KernelEntry>& KernelTable::Candidates() {
  static const auto* const kCandidates = new std::vector<KernelEntry>(MakeCandidates());
  return *kCandidates;
}

absl::StatusOr<KernelTable> KernelTable::Select(const CpuFeatures& features, CpuIsa cap) {
  if (!LevelSupported(cap, features)) {
    return absl::FailedPreconditionError(absl::StrCat("--cpu-isa=", CpuIsaName(cap), " needs ",
                                                      WhatIsMissing(cap, features), ": use ",
                                                      UsableInstead(cap, features)));
  }
  KernelTable table;
  for (const Method method : AllMethods()) {
    Choice& choice = table.choices_[static_cast<size_t>(method)];
    choice.many = Best(method, features, cap, false);
    choice.few = Best(method, features, cap, true);
    choice.min_rows = choice.many->min_rows;
  }
  table.gated_ = BestGated(features, cap);
  return table;
}

KernelTable KernelTable::ForEntry(const KernelEntry& entry) {
  KernelTable table;
  table.choices_[static_cast<size_t>(entry.method)] = {&entry, &entry, 0};
  table.gated_ = BestGated(CpuFeatures::Detect(), entry.level);
  return table;
}

MicroKernel KernelTable::kernel(Method method, int rows) const {
  const Choice& chosen = choice(method);
  ATELIER_CHECK(chosen.few != nullptr);
  return (rows >= chosen.min_rows ? chosen.many : chosen.few)->kernel;
}

const char* KernelTable::isa(Method method) const {
  const Choice& chosen = choice(method);
  ATELIER_CHECK(chosen.many != nullptr);
  return chosen.many->isa;
}

std::string AmxRefusalText(const CpuFeatures& features) {
  return absl::StrCat(
      "permission for AMX tile data, which the kernel refused "
      "(arch_prctl ARCH_REQ_XCOMP_PERM: ",
      std::strerror(features.amx_refusal), ")");
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
