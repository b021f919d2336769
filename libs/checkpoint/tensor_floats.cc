#include "libs/checkpoint/tensor_floats.h"

#include <algorithm>

#include "libs/base/check.h"
#include "libs/checkpoint/float_element.h"
#include "libs/checkpoint/gguf_source.h"
#include "libs/checkpoint/gguf_type.h"
#include "libs/model/dequantize.h"

namespace atelier {
namespace {

constexpr int kReadColumns = 256;  // at most, of QuantSource::Read

}  // namespace

size_t NumElements(const TensorView& tensor) {
  if (tensor.blocks == nullptr) return tensor.data.size() / DTypeBytes(tensor.dtype);
  return tensor.data.size() / tensor.blocks->bytes * tensor.blocks->elements;
}

void ReadFloats(const TensorView& tensor, size_t first, size_t count, float* out) {
  ATELIER_CHECK(first <= NumElements(tensor) && count <= NumElements(tensor) - first);
  if (tensor.blocks == nullptr) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = FloatElement(tensor.dtype, tensor.data.data(), first + i);
    }
    return;
  }
  const GgufType& type = *tensor.blocks;
  ATELIER_CHECK(first % type.elements == 0 && count % type.elements == 0);
  const size_t row = type.elements;  // every block is a row: places in the file are the same
  const GgufSource blocks(type, tensor.data.data() + first / row * type.bytes, row);
  QuantBlock block;
  for (size_t i = 0; i * row < count; ++i) {
    blocks.Read(static_cast<int>(i), 0, static_cast<int>(row), block);
    Dequantize(*type.method, false, block, static_cast<int>(row), out + i * row);
  }
}

void ReadRow(const PublishedMatrix& matrix, int row, int columns, float* out) {
  if (!matrix.quant) {
    const auto count = static_cast<size_t>(columns);
    return ReadFloats(matrix.tensor, static_cast<size_t>(row) * count, count, out);
  }
  const QuantMatrix& quant = *matrix.quant;
  QuantBlock block;
  for (int column = 0; column < columns; column += kReadColumns) {
    const int count = std::min(kReadColumns, columns - column);
    quant.source->Read(row, column, count, block);
    Dequantize(quant.method, quant.bf16_scales, block, count, out + column);
  }
}

}  // namespace atelier
