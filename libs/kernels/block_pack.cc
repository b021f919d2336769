#include "libs/kernels/block_pack.h"

#include <cstring>

#include "libs/base/check.h"
#include "libs/kernels/fp8_pack.h"
#include "libs/kernels/gemm/block_layout-inl.h"

namespace atelier {
namespace {

void PutHalf(uint8_t* at, size_t row, uint16_t value) {
  std::memcpy(at + row * sizeof(value), &value, sizeof(value));
}

// Writes one output row of a block of a panel; the codes' planes must be zero before.
class BlockWriter {
 public:
  BlockWriter(const BlockFormat& format, size_t groups, uint8_t* data)
      : format_(format), groups_(groups), data_(data) {}

  void Write(size_t row, const QuantBlock& block) {
    WriteHeader(row, block);
    const size_t header = HeaderBytes(format_, groups_);
    for (size_t k = 0; k < groups_ * 32; ++k) {
      uint8_t* group = data_ + header + k / 32 * GroupCodeBytes(format_);
      WriteCode(group, k % 32 / 4, row * 4 + k % 4, block.codes[k]);
    }
  }

 private:
  void WriteHeader(size_t row, const QuantBlock& block) {
    if (IsSuper(format_.scale)) PutHalf(data_, row, block.super);
    if (IsSuper(format_.min)) PutHalf(data_ + SuperMinOffset(format_), row, block.super_min);
    for (size_t j = 0; j < NumScales(format_, groups_); ++j) {
      WriteScale(data_ + ScalesOffset(format_) + j * ScaleStride(format_), row, j, block);
      WriteMin(data_ + MinsOffset(format_, groups_) + j * MinStride(format_), row, j, block);
    }
  }

  void WriteScale(uint8_t* at, size_t row, size_t j, const QuantBlock& block) {
    switch (format_.scale) {
      case ScaleCoding::kHalf:
        return PutHalf(at, row, block.half_scales[j]);
      case ScaleCoding::kE8M0:
        at[row] = block.exponents[j];
        return;
      case ScaleCoding::kSuperU:
      case ScaleCoding::kSuperS:
        at[row] = block.sub_scales[j];
        return;
      case ScaleCoding::kSuperNibble:
        at[row] = static_cast<uint8_t>(block.sub_scales[j] | block.sub_mins[j] << 4);
        return;
    }
  }

  void WriteMin(uint8_t* at, size_t row, size_t j, const QuantBlock& block) {
    switch (format_.min) {
      case MinCoding::kHalf:
        return PutHalf(at, row, block.half_mins[j]);
      case MinCoding::kZeroCode:
        at[row] = block.zero_codes[j];
        return;
      case MinCoding::kSuperU:
        at[row] = block.sub_mins[j];
        return;
      case MinCoding::kNone:
      case MinCoding::kSuperNibble:
        return;
    }
  }

  void WriteCode(uint8_t* group, size_t quad, size_t byte, uint32_t code) {
    const int low_bits = LowPlaneBits(format_.bits);
    const int high_bits = format_.bits - low_bits;
    WriteBits(group, low_bits, quad, byte, code & ((1u << low_bits) - 1));
    if (high_bits > 0) {
      WriteBits(group + HighPlaneOffset(format_.bits), high_bits, quad, byte, code >> low_bits);
    }
  }

  static void WriteBits(uint8_t* plane, int bits, size_t quad, size_t byte, uint32_t value) {
    const size_t per_byte = static_cast<size_t>(8 / bits);
    uint8_t& to = plane[quad / per_byte * 64 + byte];
    to = static_cast<uint8_t>(to | value << (quad % per_byte * static_cast<size_t>(bits)));
  }

  const BlockFormat& format_;
  const size_t groups_;
  uint8_t* const data_;
};

}  // namespace

void PackQuantMatrix(const QuantSource& source, Method method, int n, int k, int panel_begin,
                     int panel_end, uint8_t* block) {
  ATELIER_CHECK(ValidatePackedShape(method, n, k).ok());
  if (IsFp8(method)) return PackFp8Matrix(source, method, n, k, panel_begin, panel_end, block);
  const BlockFormat* format = BlockFormatOf(method);
  ATELIER_CHECK(format != nullptr);
  const size_t panel_bytes = PanelBytes(method, k);
  QuantBlock read;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    uint8_t* at = block + static_cast<size_t>(panel) * panel_bytes;
    std::memset(at, 0, panel_bytes);
    for (int b = 0; b * kBlockK < k; ++b) {
      const size_t groups = GroupsOfBlock(static_cast<size_t>(k), static_cast<size_t>(b));
      BlockWriter writer(*format, groups, at);
      for (int column = 0; column < kPanelWidth && panel * kPanelWidth + column < n; ++column) {
        source.Read(panel * kPanelWidth + column, b * kBlockK, static_cast<int>(groups) * 32, read);
        writer.Write(static_cast<size_t>(column), read);
      }
      at += BlockBytes(*format, groups);
    }
  }
}

}  // namespace atelier
