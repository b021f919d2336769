#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/model/dtype.h"
#include "libs/model/quant_source.h"

namespace atelier {

// E4M3 codes, one byte each, with scales of one of three kinds. Borrows the file's bytes.
class Fp8Source final : public QuantSource {
 public:
  struct Layout {
    Method method = Method::kFP8_BLOCK;  // kFP8_BLOCK, kFP8_ROW or kMXFP8
    const uint8_t* codes = nullptr;
    size_t columns = 0;
    // FP8_BLOCK: [ceil(rows / 128), ceil(columns / 128)]; FP8_ROW: [rows]; MXFP8: [rows, columns /
    // 32] exponents. May be unaligned.
    const uint8_t* scales = nullptr;
    DType scale_dtype = DType::kF32;  // kF32, kBF16 or kF16; of exponents not used
  };

  explicit Fp8Source(const Layout& layout) : layout_(layout) {}

  void Read(int row, int column, int count, QuantBlock& out) const override;

 private:
  float Scale(size_t index) const;

  const Layout layout_;
};

}  // namespace atelier
