#include "tools/atelier/support_matrix.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/kernels/kernel_table.h"
#include "libs/kernels/pack.h"
#include "libs/kernels/quantizer.h"
#include "libs/model/architectures.h"
#include "libs/model/quantization.h"

namespace atelier {
namespace {

constexpr char kIntroduction[] =
    "# What is supported\n\n"
    "Written by `atelier matrix` from the tables that the programs decide by; `atelier_tool_test` "
    "fails\nwhere this page, the code and the tests named here disagree. What is not listed is "
    "refused by name.\n";

// Which test stands behind what.
constexpr char kFamilyTest[] = "TinyModelOfMethod.LogitsAgreeWithTheReference";
constexpr char kExpertsTest[] = "FamiliesTest.EveryFamilysExpertsAreFoundInBothFormats";
constexpr char kRefusalTest[] = "FamiliesTest.TheFrontendRefusesWhatItCannotComputeByName";
constexpr char kDenseTest[] = "SmolLm2Gguf.EveryTensorIsReadBitForBit";
constexpr char kWidenedTest[] = "QuantisedDense.LogitsAreThoseOfTheWidenedCheckpoint";
constexpr char kGgufFamilyTest[] = "GgufCheckpointTest.IsTheModelOfTheFolder";
constexpr char kGgufValuesTest[] = "GgufOracle.EveryTypeIsReadBitForBit";
constexpr char kGgufExpertsTest[] = "PublishedGguf.HoldsTheBlocksOfEveryType";
constexpr char kGgufFloatsTest[] = "PublishedGguf.FloatsFollowTheRequestedMethod";
constexpr char kGgufRefusalTest[] = "GgufCheckpointTest.RefusesTypesThatItCannotComputeByName";

std::string Row(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

std::string Heading(const std::vector<std::string>& cells) {
  return absl::StrCat(Row(cells), Row(std::vector<std::string>(cells.size(), "---")));
}

std::string Code(absl::string_view text) { return absl::StrCat("`", text, "`"); }

std::string Names(const std::vector<Method>& methods) {
  return absl::StrJoin(methods, ", ", [](std::string* out, Method method) {
    out->append(std::string(MethodName(method)));
  });
}

std::string FamilyTests(const Architecture& row) {
  if (!row.has_experts) return Code(kDenseTest);
  std::string tests = absl::StrCat(Code(kExpertsTest));
  if (!row.beyond_frontend.empty()) return absl::StrCat(tests, ", ", Code(kRefusalTest));
  return absl::StrCat(tests, ", ", Code(kFamilyTest));
}

std::string FrontendCell(const Architecture& row) {
  if (!row.beyond_frontend.empty()) return absl::StrCat("no: ", row.beyond_frontend);
  return row.has_experts ? "computed" : "read, but not served: workers have no part in it";
}

std::string Families() {
  std::string text = absl::StrCat(
      "\n## Model families\n\nWorkers serve the experts of every family that has any; the frontend "
      "computes the rest of those whose layers\nit knows, and refuses the others at start. So does "
      "it refuse single models of a family whose config.json\nasks for more (`atelier inspect` "
      "says "
      "what): windows, scaled rotary frequencies, other scores.\n\n",
      Heading({"`model_type`", "GGUF architecture", "experts", "frontend", "tests"}));
  for (const Architecture& row : AllArchitectures()) {
    text += Row({Code(row.model_type), row.gguf_name.empty() ? "" : Code(row.gguf_name),
                 row.has_experts ? "served" : "none", FrontendCell(row), FamilyTests(row)});
  }
  return text;
}

// A published form of experts in a Hugging Face folder.
struct Format {
  const char* name;
  std::vector<Method> methods;  // that keep it exactly
  const char* test;
  bool of_layers = false;  // routed experts of a layer together: no form of other matrices
};

std::vector<Method> FloatMethods() {
  std::vector<Method> methods = AllMethods();
  std::erase_if(methods, [](Method method) { return !TakesFloats(method); });
  return methods;
}

Format FormatOf(QuantFormat format) {
  const std::vector<Method> int4 = {Method::kINT4G32,  Method::kINT4G64,  Method::kINT4G128,
                                    Method::kINT4G32Z, Method::kINT4G64Z, Method::kINT4G128Z};
  switch (format) {
    case QuantFormat::kNone:
      return {"BF16, F16, F32", FloatMethods(), "ExpertStoreTest.HoldsWhatADirectPackGives"};
    case QuantFormat::kPackedInt4:
      return {"compressed-tensors `pack-quantized`, 4 bits", int4,
              "QuantMatrixTest.ReadsCompressedTensors"};
    case QuantFormat::kGptq:
      return {"GPTQ, 4 bits, `desc_act` false", int4,
              "QuantMatrixTest.ReadsGptqWithItsZeroPointsLessOne"};
    case QuantFormat::kAwq:
      return {"AWQ `gemm`, 4 bits",
              {int4.begin() + 3, int4.end()},
              "QuantMatrixTest.ReadsAwqsInterleavedOutputs"};
    case QuantFormat::kPackedMxFp4:
      return {"compressed-tensors `mxfp4-pack-quantized`",
              {Method::kMXFP4},
              "QuantMatrixTest.ReadsPackedMxFp4"};
    case QuantFormat::kMxFp4Blocks:
      return {"MXFP4 blocks and scales of a whole layer",
              {Method::kMXFP4},
              "QuantMatrixTest.ReadsBlocksOfAllExpertsWithAlternatingGateAndUp",
              true};
    case QuantFormat::kFp8Blocks:
      return {"FP8 E4M3, a scale per 128 x 128",
              {Method::kFP8_BLOCK},
              "Fp8MatrixTest.ReadsBlocksThatEndEarly"};
    case QuantFormat::kFp8Rows:
      return {"FP8 E4M3, a scale per output row",
              {Method::kFP8_ROW},
              "Fp8MatrixTest.ReadsScalesPerRowOfBothShapes"};
    case QuantFormat::kMxFp8:
      return {"MXFP8", {Method::kMXFP8}, "Fp8MatrixTest.ReadsMxFp8"};
  }
  return {};
}

// What the frontend makes of its own matrices in a form.
std::string FrontendCell(QuantFormat format, bool of_layers) {
  if (format == QuantFormat::kNone) return "as BF16";
  return of_layers ? "" : absl::StrCat("widened to BF16: ", Code(kWidenedTest));
}

std::string Formats() {
  std::string text = absl::StrCat(
      "\n## Matrices in Hugging Face folders\n\nOf every family: the format is a property of its "
      "own, and seen matrix by matrix. Experts can also lie in one\ntensor per layer where "
      "published so.\n\n",
      Heading(
          {"published as", "experts are kept and computed as", "test", "the frontend's matrices"}));
  for (int i = 0; i <= static_cast<int>(QuantFormat::kMxFp4Blocks); ++i) {
    const Format format = FormatOf(static_cast<QuantFormat>(i));
    text += Row({format.name, Names(format.methods), Code(format.test),
                 FrontendCell(static_cast<QuantFormat>(i), format.of_layers)});
  }
  return text;
}

std::string GgufTypeRow(const GgufType& type) {
  const bool is_float =
      type.dtype == DType::kBF16 || type.dtype == DType::kF16 || type.dtype == DType::kF32;
  const std::string block =
      type.elements == 1 ? "" : absl::StrCat(type.bytes, " bytes of ", type.elements);
  if (!is_float && !type.method) {
    return Row({std::string(type.name), block, "refused", "refused", Code(kGgufRefusalTest)});
  }
  if (is_float) {
    return Row({std::string(type.name), block, "as those of a folder", "read",
                absl::StrCat(Code(kGgufFamilyTest), ", ", Code(kGgufFloatsTest))});
  }
  return Row({std::string(type.name), block, absl::StrCat("as ", MethodName(*type.method)), "read",
              absl::StrCat(Code(kGgufValuesTest), ", ", Code(kGgufExpertsTest))});
}

std::string GgufTypes() {
  std::string text = absl::StrCat(
      "\n## Tensor types of GGUF\n\nVersions 2 and 3, single files and split sets; the types of "
      "one "
      "file may differ by tensor.\n\n",
      Heading({"type", "block", "experts", "the frontend's tensors", "tests"}));
  for (uint32_t id = 0; id < kNumGgufTypeIds; ++id) {
    const GgufType* type = FindGgufType(id);
    if (type != nullptr) text += GgufTypeRow(*type);
  }
  return text;
}

// Of the kernels, in the order of the table.
std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  for (const KernelEntry& entry : KernelTable::Candidates()) {
    if (std::find(names.begin(), names.end(), entry.isa) == names.end()) names.push_back(entry.isa);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const char* KernelTest(Method method) {
  if (BlockFormatOf(method) != nullptr) return "BlockGemmOnEveryIsa.IsBitEqualToScalarOnOddShapes";
  if (IsFp8(method)) return "Fp8GemmOnEveryIsa.MatchesReferenceOnOddShapes";
  return "PlainGemmOnEveryIsa.MatchesReferenceOnOddShapes";
}

std::string MethodRow(Method method, const std::vector<std::string>& sets) {
  const int slice = KSliceMultiple(method);
  std::vector<std::string> cells = {
      std::string(MethodName(method)),
      TakesFloats(method)
          ? Code(absl::StrCat("--method=", absl::AsciiStrToLower(MethodName(method))))
          : "",
      slice == 1 ? "anywhere" : absl::StrCat("multiples of ", slice)};
  for (const std::string& set : sets) {
    const auto& all = KernelTable::Candidates();
    const bool has = std::any_of(all.begin(), all.end(), [&](const KernelEntry& entry) {
      return entry.method == method && set == entry.isa;
    });
    cells.push_back(has ? "yes" : "");
  }
  cells.push_back(Code(KernelTest(method)));
  return Row(cells);
}

std::string Methods() {
  const std::vector<std::string> sets = InstructionSets();
  std::vector<std::string> heading = {"method", "floats are turned into it by", "slices of down"};
  heading.insert(heading.end(), sets.begin(), sets.end());
  heading.push_back("test");
  std::string text = absl::StrCat(
      "\n## Methods and instruction sets\n\nThe best one that the CPU has is chosen at start "
      "(`expert-worker --capabilities`).\n\n",
      Heading(heading));
  for (const Method method : AllMethods()) text += MethodRow(method, sets);
  return text;
}

}  // namespace

std::string SupportMatrix() {
  return absl::StrCat(kIntroduction, Families(), Formats(), GgufTypes(), Methods());
}

}  // namespace atelier
