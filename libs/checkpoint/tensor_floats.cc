#include "libs/checkpoint/tensor_floats.h"

#include <algorithm>

#include "libs/base/check.h"
#include "libs/checkpoint/float_element.h"
#include "libs/checkpoint/gguf_source.h"
#include "libs/checkpoint/gguf_type.h"

namespace atelier {

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
    DequantizeBlock(*type.method, block, static_cast<int>(row), out + i * row);
  }
}

}  // namespace atelier
