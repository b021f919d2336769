#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/checkpoint/gguf_type.h"
#include "libs/model/quant_source.h"

namespace atelier {

// A matrix of GGUF blocks. Borrows the file's bytes.
class GgufSource final : public QuantSource {
 public:
  // `data`: the first row, perhaps unaligned; rows of `columns`, whole blocks, one after the other.
  // REQUIRES: type.method.
  GgufSource(const GgufType& type, const uint8_t* data, size_t columns)
      : type_(type), data_(data), row_bytes_(columns / type.elements * type.bytes) {}

  void Read(int row, int column, int count, QuantBlock& out) const override;

 private:
  const GgufType& type_;
  const uint8_t* const data_;
  const size_t row_bytes_;
};

}  // namespace atelier
