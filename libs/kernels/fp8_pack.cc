#include "libs/kernels/fp8_pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "libs/base/check.h"
#include "libs/kernels/gemm/fp8_layout-inl.h"

namespace atelier {
namespace {

constexpr uint8_t kMagnitude = 0x7f;  // all of it set: NaN
constexpr uint8_t kNanExponent = 0xff;

// Copies the codes of inputs [begin, end) of one row, at most 128, and returns whether all are
// numbers; a NaN is left zero.
bool PutCodes(const uint8_t* codes, size_t count, size_t row, uint8_t* to) {
  bool numbers = true;
  for (size_t k = 0; k < count; ++k) {
    const bool nan = (codes[k] & kMagnitude) == kMagnitude;
    to[Fp8CodeOffset(row, k)] = nan ? 0 : codes[k];
    numbers = numbers && !nan;
  }
  return numbers;
}

// Writes one output row of a panel. The panel must be zero before.
class RowWriter {
 public:
  RowWriter(Fp8Scales scales, size_t k, size_t row, uint8_t* panel)
      : scales_(scales), k_(k), row_(row), panel_(panel) {}

  void Write(const QuantSource& source, int n) {
    uint8_t* at = panel_ + Fp8PanelHeader(scales_);
    QuantBlock read;
    for (size_t b = 0; b * kFp8BlockK < k_; ++b) {
      if (b % 2 == 0) {
        const size_t count = std::min(k_ - b * kFp8BlockK, size_t{256});
        source.Read(n, static_cast<int>(b * kFp8BlockK), static_cast<int>(count), read);
      }
      if (b == 0) row_scale_ = read.float_scales[0];
      WriteBlock(read, b, at);
      at += Fp8BlockBytes(scales_, Fp8GroupsOfBlock(k_, b));
    }
    if (scales_ == Fp8Scales::kRows) PutScale(panel_, numbers_, row_scale_);
  }

 private:
  void WriteBlock(const QuantBlock& read, size_t b, uint8_t* at) {
    const size_t half = b % 2;
    const size_t count = std::min(k_ - b * kFp8BlockK, kFp8BlockK);
    const uint8_t* codes = read.codes + half * kFp8BlockK;
    uint8_t* to = at + Fp8BlockHeader(scales_);
    switch (scales_) {
      case Fp8Scales::kRows:
        numbers_ = PutCodes(codes, count, row_, to) && numbers_;
        return;
      case Fp8Scales::kBlocks:
        return PutScale(at, PutCodes(codes, count, row_, to), read.float_scales[half]);
      case Fp8Scales::kGroups:
        for (size_t g = 0; g * kFp8GroupK < count; ++g) {
          const bool numbers =
              PutCodes(codes + g * kFp8GroupK, kFp8GroupK, row_, to + g * kFp8GroupCodes);
          at[g * 16 + row_] = numbers ? read.exponents[half * 4 + g] : kNanExponent;
        }
    }
  }

  void PutScale(uint8_t* at, bool numbers, float scale) {
    if (!numbers || !std::isfinite(scale)) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(at + row_ * sizeof(scale), &scale, sizeof(scale));
  }

  const Fp8Scales scales_;
  const size_t k_;
  const size_t row_;  // of the panel
  uint8_t* const panel_;
  float row_scale_ = 0;
  bool numbers_ = true;
};

Fp8Scales ScalesOf(Method method) {
  switch (method) {
    case Method::kFP8_BLOCK:
      return Fp8Scales::kBlocks;
    case Method::kFP8_ROW:
      return Fp8Scales::kRows;
    default:
      ATELIER_CHECK(method == Method::kMXFP8);
      return Fp8Scales::kGroups;
  }
}

}  // namespace

size_t Fp8PanelBytes(Method method, int k) {
  return Fp8PanelBytes(ScalesOf(method), static_cast<size_t>(k));
}

void PackFp8Matrix(const QuantSource& source, Method method, int n, int k, int panel_begin,
                   int panel_end, uint8_t* block) {
  const size_t panel_bytes = PanelBytes(method, k);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    uint8_t* at = block + static_cast<size_t>(panel) * panel_bytes;
    std::memset(at, 0, panel_bytes);
    for (int column = 0; column < kPanelWidth && panel * kPanelWidth + column < n; ++column) {
      RowWriter writer(ScalesOf(method), static_cast<size_t>(k), static_cast<size_t>(column), at);
      writer.Write(source, panel * kPanelWidth + column);
    }
  }
}

}  // namespace atelier
