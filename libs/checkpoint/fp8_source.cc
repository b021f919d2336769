#include "libs/checkpoint/fp8_source.h"

#include <cstring>

#include "libs/base/checked_math.h"
#include "libs/checkpoint/float_element.h"

namespace atelier {
namespace {

constexpr size_t kBlock = 128;
constexpr size_t kMxGroup = 32;

}  // namespace

float Fp8Source::Scale(size_t index) const {
  return FloatElement(layout_.scale_dtype, layout_.scales, index);
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
