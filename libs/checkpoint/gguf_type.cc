#include "libs/checkpoint/gguf_type.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_join.h"

namespace atelier {
namespace {

constexpr std::nullopt_t kNo = std::nullopt;

// By id. Types without dtype and method are known well enough to be skipped or listed.
constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, DType::kF32, kNo},
    {1, "F16", 1, 2, DType::kF16, kNo},
    {2, "Q4_0", 32, 18, kNo, Method::kQ4_0},
    {3, "Q4_1", 32, 20, kNo, Method::kQ4_1},
    {6, "Q5_0", 32, 22, kNo, Method::kQ5_0},
    {7, "Q5_1", 32, 24, kNo, Method::kQ5_1},
    {8, "Q8_0", 32, 34, kNo, Method::kQ8_0},
    {9, "Q8_1", 32, 36, kNo, kNo},
    {10, "Q2_K", 256, 84, kNo, Method::kQ2_K},
    {11, "Q3_K", 256, 110, kNo, Method::kQ3_K},
    {12, "Q4_K", 256, 144, kNo, Method::kQ4_K},
    {13, "Q5_K", 256, 176, kNo, Method::kQ5_K},
    {14, "Q6_K", 256, 210, kNo, Method::kQ6_K},
    {15, "Q8_K", 256, 292, kNo, kNo},
    {16, "IQ2_XXS", 256, 66, kNo, kNo},
    {17, "IQ2_XS", 256, 74, kNo, kNo},
    {18, "IQ3_XXS", 256, 98, kNo, kNo},
    {19, "IQ1_S", 256, 50, kNo, kNo},
    {20, "IQ4_NL", 32, 18, kNo, Method::kIQ4_NL},
    {21, "IQ3_S", 256, 110, kNo, kNo},
    {22, "IQ2_S", 256, 82, kNo, kNo},
    {23, "IQ4_XS", 256, 136, kNo, Method::kIQ4_XS},
    {24, "I8", 1, 1, DType::kI8, kNo},
    {25, "I16", 1, 2, DType::kI16, kNo},
    {26, "I32", 1, 4, DType::kI32, kNo},
    {27, "I64", 1, 8, DType::kI64, kNo},
    {28, "F64", 1, 8, DType::kF64, kNo},
    {29, "IQ1_M", 256, 56, kNo, kNo},
    {30, "BF16", 1, 2, DType::kBF16, kNo},
    {34, "TQ1_0", 256, 54, kNo, kNo},
    {35, "TQ2_0", 256, 66, kNo, kNo},
    {39, "MXFP4", 32, 17, kNo, Method::kMXFP4},
    {40, "NVFP4", 64, 36, kNo, kNo},
};

static_assert(std::rbegin(kTypes)->id < kNumGgufTypeIds);

}  // namespace

const GgufType* FindGgufType(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

absl::string_view ForeignGgufType(uint32_t id) {
  if (id == 4 || id == 5) return "Q4_2 or Q4_3, which llama.cpp gave up";
  if (id >= 31 && id <= 33) return "Q4_0 in repacked rows, which llama.cpp gave up";
  if (id >= 36 && id <= 38) return "IQ4_NL in repacked rows, which llama.cpp gave up";
  if (id >= 202 && id <= 399) return "interleaved rows (_R4, _R8) of ik_llama.cpp";
  if (id >= 97 && id <= 201) return "a type of ik_llama.cpp";
  return "";
}

std::string ComputedGgufTypes() {
  std::vector<absl::string_view> names = {"F32", "F16", "BF16"};
  for (const GgufType& type : kTypes) {
    if (type.method.has_value()) names.push_back(type.name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace atelier
