#include "libs/model/dtype.h"

#include <iterator>

#include "libs/base/check.h"

namespace atelier {
namespace {

struct DTypeRow {
  DType dtype;
  absl::string_view name;
  size_t bytes;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kBF16, "BF16", 2},      {DType::kF16, "F16", 2},        {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},        {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E8M0, "F8_E8M0", 1}, {DType::kI8, "I8", 1},          {DType::kU8, "U8", 1},
    {DType::kI16, "I16", 2},        {DType::kI32, "I32", 4},        {DType::kI64, "I64", 8},
    {DType::kBool, "BOOL", 1},
};

// In the order of the enumeration.
constexpr absl::string_view kMethodNames[] = {
    "BF16",        "INT8",         "INT4_G32", "INT4_G64",  "INT4_G128", "INT4_G32_ZP",
    "INT4_G64_ZP", "INT4_G128_ZP", "MXFP4",    "FP8_BLOCK", "FP8_ROW",   "MXFP8",
    "Q8_0",        "Q4_0",         "Q4_1",     "Q5_0",      "Q5_1",      "Q2_K",
    "Q3_K",        "Q4_K",         "Q5_K",     "Q6_K",      "IQ4_NL",    "IQ4_XS"};
static_assert(std::size(kMethodNames) == static_cast<size_t>(Method::kIQ4_XS) + 1);

const DTypeRow& RowOf(DType dtype) {
  const size_t index = static_cast<size_t>(dtype);
  ATELIER_CHECK(index < std::size(kDTypes) && kDTypes[index].dtype == dtype);
  return kDTypes[index];
}

}  // namespace

size_t DTypeBytes(DType dtype) { return RowOf(dtype).bytes; }

absl::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> ParseDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

const std::vector<Method>& AllMethods() {
  static const auto* const kMethods = [] {
    auto* methods = new std::vector<Method>;
    for (size_t i = 0; i < std::size(kMethodNames); ++i) methods->push_back(static_cast<Method>(i));
    return methods;
  }();
  return *kMethods;
}

absl::string_view MethodName(Method method) {
  const size_t index = static_cast<size_t>(method);
  ATELIER_CHECK(index < std::size(kMethodNames));
  return kMethodNames[index];
}

std::optional<Method> ParseMethod(absl::string_view name) {
  for (const Method method : AllMethods()) {
    if (MethodName(method) == name) return method;
  }
  return std::nullopt;
}

}  // namespace atelier
