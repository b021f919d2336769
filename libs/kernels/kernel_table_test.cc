#include "libs/kernels/kernel_table.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libs/kernels/pack.h"
#include "libs/testing/status_matchers.h"

namespace atelier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

CpuFeatures Features(bool avx2, bool avx512, bool vnni, bool bf16, bool avx_vnni = false) {
  CpuFeatures features;
  features.avx2_fma = avx2;
  features.avx512 = avx512;
  features.avx512_vnni = vnni;
  features.avx512_bf16 = bf16;
  features.avx_vnni = avx_vnni;
  return features;
}

CpuFeatures SapphireRapids() {
  CpuFeatures features = Features(true, true, true, true);
  features.avx512_vbmi = true;
  features.amx_tile = features.amx_int8 = features.amx_bf16 = true;
  return features;
}

CpuFeatures RefusedSapphireRapids() {
  CpuFeatures features = Features(true, true, true, true);
  features.amx_refusal = EOPNOTSUPP;
  return features;
}

struct Choice {
  CpuFeatures features;
  CpuIsa cap;
  const char* bf16;
  const char* int8;
};

TEST(KernelTable, SelectsTheBestThatCpuAndCapAllow) {
  const CpuFeatures none, avx2 = Features(true, false, false, false);
  const CpuFeatures skylake = Features(true, true, false, false);
  const CpuFeatures icelake = Features(true, true, true, false);
  const CpuFeatures zen4 = Features(true, true, true, true);
  const CpuFeatures alderlake = Features(true, false, false, false, true);
  const CpuFeatures sapphirerapids = Features(true, true, true, true, true);
  const Choice choices[] = {
      {none, CpuIsa::kAuto, "scalar", "scalar"},
      {none, CpuIsa::kScalar, "scalar", "scalar"},
      {avx2, CpuIsa::kAuto, "avx2", "avx2"},
      {avx2, CpuIsa::kAvx2, "avx2", "avx2"},
      {alderlake, CpuIsa::kAuto, "avx2", "avxvnni"},
      {alderlake, CpuIsa::kAvx2, "avx2", "avx2"},
      {sapphirerapids, CpuIsa::kAuto, "avx512bf16", "avx512vnni"},
      {sapphirerapids, CpuIsa::kAvxVnni, "avx2", "avxvnni"},
      {skylake, CpuIsa::kAuto, "avx512", "avx512"},
      {skylake, CpuIsa::kAvx2, "avx2", "avx2"},
      {icelake, CpuIsa::kAuto, "avx512", "avx512vnni"},
      {zen4, CpuIsa::kAuto, "avx512bf16", "avx512vnni"},
      {zen4, CpuIsa::kAvx512, "avx512bf16", "avx512vnni"},
      {zen4, CpuIsa::kAvx2, "avx2", "avx2"},
      {zen4, CpuIsa::kScalar, "scalar", "scalar"},
      {SapphireRapids(), CpuIsa::kAuto, "amx", "amx"},
      {SapphireRapids(), CpuIsa::kAmx, "amx", "amx"},
      {SapphireRapids(), CpuIsa::kAvx512, "avx512bf16", "avx512vnni"},
      {RefusedSapphireRapids(), CpuIsa::kAuto, "avx512bf16", "avx512vnni"},
  };
  for (const Choice& choice : choices) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const KernelTable table,
                                 KernelTable::Select(choice.features, choice.cap));
    EXPECT_STREQ(table.isa(Method::kBF16), choice.bf16);
    EXPECT_STREQ(table.isa(Method::kINT8), choice.int8);
    EXPECT_STREQ(table.isa(Method::kQ4_K), choice.int8);
  }
}

TEST(KernelTable, Fp8OnBf16InstructionsNeedsVbmiToo) {
  CpuFeatures features = Features(true, true, true, true);
  EXPECT_STREQ(KernelTable::Select(features, CpuIsa::kAuto).value().isa(Method::kFP8_ROW),
               "avx512");
  features.avx512_vbmi = true;
  EXPECT_STREQ(KernelTable::Select(features, CpuIsa::kAuto).value().isa(Method::kFP8_ROW),
               "avx512bf16");
}

TEST(KernelTable, Fp8TilesNeedBf16ProductsOnly) {
  CpuFeatures features = Features(true, true, false, false);
  features.amx_tile = features.amx_bf16 = true;
  const KernelTable table = KernelTable::Select(features, CpuIsa::kAuto).value();
  for (const Method method : {Method::kFP8_BLOCK, Method::kFP8_ROW, Method::kMXFP8}) {
    EXPECT_STREQ(table.isa(method), "amx") << MethodName(method);
  }
  EXPECT_STREQ(table.isa(Method::kINT8), "avx512");
}

TEST(KernelTable, RefusesACapTheCpuLacksAndSaysWhatIsMissing) {
  EXPECT_THAT(KernelTable::Select(CpuFeatures{}, CpuIsa::kAvx2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--cpu-isa=avx2"), HasSubstr("FMA"), HasSubstr("scalar"))));
  EXPECT_THAT(KernelTable::Select(Features(true, true, true, true), CpuIsa::kAvxVnni),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--cpu-isa=avxvnni"), HasSubstr("AVX-VNNI"),
                             HasSubstr("use avx2"))));
  EXPECT_THAT(KernelTable::Select(Features(true, false, false, false), CpuIsa::kAvx512),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--cpu-isa=avx512"), HasSubstr("AVX-512 F"),
                             HasSubstr("use avx2"))));
  EXPECT_THAT(KernelTable::Select(Features(true, true, true, true), CpuIsa::kAmx),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--cpu-isa=amx needs AMX-TILE"), HasSubstr("this CPU"),
                             HasSubstr("use avx512, avx2, scalar or auto"))));
  EXPECT_THAT(KernelTable::Select(RefusedSapphireRapids(), CpuIsa::kAmx),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("ARCH_REQ_XCOMP_PERM"), HasSubstr(std::strerror(EOPNOTSUPP)),
                             HasSubstr("use avx512"))));
}

TEST(KernelTable, TakesTilesOnlyForEnoughRowsOfAnExpert) {
  ATELIER_ASSERT_OK_AND_ASSIGN(const KernelTable table,
                               KernelTable::Select(SapphireRapids(), CpuIsa::kAuto));
  for (const Method method : AllMethods()) {
    const KernelEntry *tiles = nullptr, *vectors = nullptr;
    for (const KernelEntry& entry : KernelTable::Candidates()) {
      if (entry.method != method) continue;
      if (entry.min_rows > 0) tiles = &entry;
      if (entry.min_rows == 0 && vectors == nullptr) vectors = &entry;
    }
    ASSERT_NE(tiles, nullptr) << MethodName(method);
    EXPECT_STREQ(tiles->isa, "amx");
    EXPECT_EQ(table.kernel(method, 1), vectors->kernel);
    EXPECT_EQ(table.kernel(method, tiles->min_rows - 1), vectors->kernel);
    EXPECT_EQ(table.kernel(method, tiles->min_rows), tiles->kernel);
    EXPECT_EQ(table.kernel(method, 1000), tiles->kernel);
  }
}

TEST(KernelTable, CandidatesEndWithScalarForEveryMethod) {
  for (const Method method : AllMethods()) {
    const KernelEntry* last = nullptr;
    for (const KernelEntry& entry : KernelTable::Candidates()) {
      if (entry.method == method) last = &entry;
    }
    ASSERT_NE(last, nullptr);
    EXPECT_STREQ(last->isa, "scalar");
    EXPECT_TRUE(last->supported(CpuFeatures{}));
  }
}

TEST(CapabilitiesText, MarksEveryCellOfTheMatrix) {
  const CpuFeatures icelake = Features(true, true, true, false);
  ATELIER_ASSERT_OK_AND_ASSIGN(const KernelTable table,
                               KernelTable::Select(icelake, CpuIsa::kAuto));
  std::string want =
      "method        isa         this CPU\n"
      "BF16          amx         no\n"
      "BF16          avx512bf16  no\n"
      "BF16          avx512      selected\n"
      "BF16          avx2        yes\n"
      "BF16          scalar      yes\n"
      "INT8          amx         no\n"
      "INT8          avx512vnni  selected\n"
      "INT8          avx512      yes\n"
      "INT8          avxvnni     no\n"
      "INT8          avx2        yes\n"
      "INT8          scalar      yes\n";
  for (const Method method : AllMethods()) {
    if (IsFp8(method)) {
      for (const char* cell : {"amx         no\n", "avx512bf16  no\n", "avx512      selected\n",
                               "avx2        yes\n", "scalar      yes\n"}) {
        absl::StrAppendFormat(&want, "%-14s%s", MethodName(method), cell);
      }
    }
    if (BlockFormatOf(method) == nullptr) continue;
    for (const char* cell : {"amx         no\n", "avx512vnni  selected\n", "avx512      yes\n",
                             "avxvnni     no\n", "avx2        yes\n", "scalar      yes\n"}) {
      absl::StrAppendFormat(&want, "%-14s%s", MethodName(method), cell);
    }
  }
  EXPECT_EQ(CapabilitiesText(icelake, table), want);
}

TEST(CpuFeatures, DetectsOnlyConsistentSets) {
  const CpuFeatures features = CpuFeatures::Detect();
  EXPECT_TRUE(features.avx2_fma || !features.avx512);
  EXPECT_TRUE(features.avx512 || !(features.avx512_vnni || features.avx512_bf16));
  EXPECT_TRUE(features.avx2_fma || !features.avx_vnni);
  EXPECT_EQ(features.avx2_fma, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(features.avx512_vnni, static_cast<bool>(__builtin_cpu_supports("avx512vnni")));
  EXPECT_TRUE(features.amx_tile || !(features.amx_int8 || features.amx_bf16));
}

// Bits 24, 25 and 22 of EDX are AMX-TILE, AMX-INT8 and AMX-BF16; 17 and 18 of XCR0 the tiles'
// state.
TEST(DetectAmx, NeedsTheCpuItsSystemAndPermission) {
  constexpr uint32_t kTile = 1u << 24, kAll = kTile | 1u << 25 | 1u << 22;
  constexpr uint64_t kState = uint64_t{3} << 17;
  int requests = 0;
  const auto detect = [&requests](uint32_t edx, uint64_t xcr0, int answer) {
    CpuFeatures features;
    DetectAmx(
        edx, xcr0,
        [&] {
          ++requests;
          return answer;
        },
        features);
    return features;
  };
  for (const uint64_t state : {uint64_t{0}, uint64_t{0xe7}, uint64_t{1} << 17, uint64_t{1} << 18}) {
    EXPECT_FALSE(detect(kAll, state, 0).amx_tile) << state;
  }
  EXPECT_FALSE(detect(kAll & ~kTile, kState, 0).amx_int8);
  EXPECT_EQ(requests, 0) << "asked for what there is not";
  const CpuFeatures all = detect(kAll, kState | 0xe7, 0);
  EXPECT_TRUE(all.amx_tile && all.amx_int8 && all.amx_bf16);
  EXPECT_EQ(all.amx_refusal, 0);
  const CpuFeatures only_bf16 = detect(kTile | 1u << 22, kState, 0);
  EXPECT_TRUE(only_bf16.amx_bf16 && !only_bf16.amx_int8);
  const CpuFeatures refused = detect(kAll, kState, EPERM);
  EXPECT_FALSE(refused.amx_tile || refused.amx_int8 || refused.amx_bf16);
  EXPECT_EQ(refused.amx_refusal, EPERM);
  EXPECT_EQ(requests, 3);
}

TEST(CpuIsa, NamesAreParsedBackAndOthersListed) {
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512,
                     CpuIsa::kAmx, CpuIsa::kAuto}) {
    ATELIER_ASSERT_OK_AND_ASSIGN(const CpuIsa parsed, ParseCpuIsa(CpuIsaName(isa)));
    EXPECT_EQ(parsed, isa);
  }
  for (const char* name : {"", "avx", "AVX2", "sse4"}) {
    EXPECT_THAT(ParseCpuIsa(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("\"", name, "\"")),
                               HasSubstr("scalar, avx2, avxvnni, avx512, amx or auto"))));
  }
}

}  // namespace
}  // namespace atelier
