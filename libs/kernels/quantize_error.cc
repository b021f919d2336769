#include "libs/kernels/quantize_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/float16.h"
#include "libs/kernels/quantizer.h"
#include "libs/model/dequantize.h"
#include "libs/model/int8_codes.h"

namespace atelier {
namespace {

constexpr int kReadColumns = 256;  // at most, of QuantSource::Read

void KeepRow(const WeightSource& source, Method method, int row, std::vector<float>& values,
             std::vector<float>& kept) {
  const int k = static_cast<int>(values.size());
  ReadWeights(source, row, 0, k, values.data());
  if (method == Method::kBF16) {
    std::transform(values.begin(), values.end(), kept.begin(),
                   [](float value) { return ToFloat(ToBFloat16(value)); });
  } else if (method == Method::kINT8) {
    std::vector<int8_t> codes(values.size());
    const float scale = QuantizeInt8Row(values.data(), k, codes.data());
    std::transform(codes.begin(), codes.end(), kept.begin(),
                   [scale](int8_t code) { return scale * static_cast<float>(code); });
  } else {
    const QuantizingSource quantizer(source, method);
    for (int column = 0; column < k; column += kReadColumns) {
      const int count = std::min(kReadColumns, k - column);
      QuantBlock block;
      quantizer.Read(row, column, count, block);
      Dequantize(method, /*bf16_scales=*/false, block, count, kept.data() + column);
    }
  }
}

}  // namespace

double SquaredSums::Relative() const {
  return weight == 0 && error == 0 ? 0 : std::sqrt(error / weight);
}

SquaredSums QuantizeError(const WeightSource& source, Method method, int k, int row_begin,
                          int row_end) {
  ATELIER_CHECK(TakesFloats(method));
  std::vector<float> values(static_cast<size_t>(k)), kept(static_cast<size_t>(k));
  SquaredSums sums;
  for (int row = row_begin; row < row_end; ++row) {
    KeepRow(source, method, row, values, kept);
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(values[i]) - static_cast<double>(kept[i]);
      sums.error += error * error;
      sums.weight += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  return sums;
}

}  // namespace atelier
