#include "libs/checkpoint/fp8_source.h"

#include <cstring>

#include "libs/base/checked_math.h"
#include "libs/base/float16.h"

namespace atelier {
namespace {

constexpr size_t kBlock = 128;
constexpr size_t kMxGroup = 32;

}  // namespace

float Fp8Source::Scale(size_t index) const {
  if (layout_.scale_dtype == DType::kF32) {
    float value;
    std::memcpy(&value, layout_.scales + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, layout_.scales + index * sizeof(bits), sizeof(bits));
  return layout_.scale_dtype == DType::kBF16 ? ToFloat(BFloat16{bits}) : Float16ToFloat(bits);
}

void Fp8Source::Read(int row, int column, int count, QuantBlock& out) const {
  const size_t r = static_cast<size_t>(row), first = static_cast<size_t>(column);
  const size_t n = static_cast<size_t>(count), at = r * layout_.columns + first;
  std::memcpy(out.codes, layout_.codes + at, n);
  if (layout_.method == Method::kMXFP8) {
    std::memcpy(out.exponents, layout_.scales + at / kMxGroup, n / kMxGroup);
    return;
  }
  if (layout_.method == Method::kFP8_ROW) {
    out.float_scales[0] = Scale(r);
    return;
  }
  const size_t begin = r / kBlock * CeilDiv(layout_.columns, kBlock) + first / kBlock;
  for (size_t j = 0; j * kBlock < n; ++j) out.float_scales[j] = Scale(begin + j);
}

}  // namespace atelier
