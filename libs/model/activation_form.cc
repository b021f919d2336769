#include "libs/model/activation_form.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/model/int8_codes.h"

namespace atelier {

size_t ScalesPerRow(ActivationForm form, int width) {
  ATELIER_DCHECK(form != ActivationForm::kBf16 && width > 0);
  if (form == ActivationForm::kInt8Row) return 1;
  return CeilDiv(static_cast<size_t>(width), static_cast<size_t>(kInt8BlockInputs));
}

void QuantizeRow(ActivationForm form, const BFloat16* row, int width, int8_t* codes,
                 float* scales) {
  if (form == ActivationForm::kInt8Row) {
    scales[0] = QuantizeInt8Row(row, width, codes);
    return;
  }
  ATELIER_DCHECK(form == ActivationForm::kInt8Blocks);
  float* scale = scales;
  bool finite = true;
  for (int begin = 0; begin < width; begin += kInt8BlockInputs, ++scale) {
    const int count = std::min(width - begin, kInt8BlockInputs);
    *scale = QuantizeInt8Row(row + begin, count, codes + begin);
    finite = finite && !std::isnan(*scale);
  }
  if (!finite) std::fill(scales, scale, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace atelier
