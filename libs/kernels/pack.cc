#include "libs/kernels/pack.h"

#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/kernels/block_pack.h"
#include "libs/kernels/fp8_pack.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/kernels/quantizer.h"
#include "libs/model/int8_codes.h"

namespace atelier {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kGroupStride = static_cast<size_t>(kPanelWidth) * kGroupBytes;

size_t ElementBytes(Method method) { return method == Method::kBF16 ? 2 : 1; }

size_t PaddedRows(int n) { return RoundUp(static_cast<size_t>(n), size_t{kPanelWidth}); }

size_t ScaleBytes(Method method, int n) {
  return method == Method::kINT8 ? PaddedRows(n) * sizeof(float) : 0;
}

// Sources are read with memcpy: safetensors promises no alignment.
template <typename Bits, typename Convert>
void ReadRow(const uint8_t* at, int k, Convert convert, float* out) {
  for (int i = 0; i < k; ++i) {
    Bits bits;
    std::memcpy(&bits, at + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    out[i] = convert(bits);
  }
}

// The row of a panel, contiguous and in the method's element type, before it is interleaved.
class RowEncoder {
 public:
  RowEncoder(Method method, int k)
      : method_(method),
        k_(k),
        values_(static_cast<size_t>(k)),
        codes_(static_cast<size_t>(k)),
        bytes_(PaddedRowBytes(method, k)) {}

  // Returns the scale (1 for methods without).
  float Encode(const WeightSource& source, int row) {
    ReadWeights(source, row, 0, k_, values_.data());
    if (method_ == Method::kBF16) {
      for (size_t i = 0; i < values_.size(); ++i) {
        const BFloat16 value = ToBFloat16(values_[i]);
        std::memcpy(bytes_.data() + i * sizeof(value), &value, sizeof(value));
      }
      return 1.0f;
    }
    const float scale = QuantizeInt8Row(values_.data(), k_, codes_.data());
    for (size_t i = 0; i < codes_.size(); ++i) {
      bytes_[i] = static_cast<uint8_t>(codes_[i] + kInt8WeightOffset);
    }
    std::memset(bytes_.data() + codes_.size(), kInt8WeightOffset, bytes_.size() - codes_.size());
    return scale;
  }

  float EncodeZeros() {
    std::memset(bytes_.data(), method_ == Method::kINT8 ? kInt8WeightOffset : 0, bytes_.size());
    return 0.0f;
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  Method method_;
  int k_;
  std::vector<float> values_;
  std::vector<int8_t> codes_;
  std::vector<uint8_t> bytes_;
};

}  // namespace

void ReadWeights(const WeightSource& source, int row, int column, int count, float* out) {
  const uint8_t* data = static_cast<const uint8_t*>(source.data);
  const size_t offset = static_cast<size_t>(row) * source.row_stride + static_cast<size_t>(column);
  switch (source.dtype) {
    case DType::kBF16:
      return ReadRow<uint16_t>(
          data + offset * 2, count, [](uint16_t bits) { return ToFloat(BFloat16{bits}); }, out);
    case DType::kF16:
      return ReadRow<uint16_t>(data + offset * 2, count, Float16ToFloat, out);
    case DType::kF32:
      return ReadRow<uint32_t>(
          data + offset * 4, count, [](uint32_t bits) { return std::bit_cast<float>(bits); }, out);
    default:
      ATELIER_CHECK(false && "weights are read from BF16, F16 and F32");
  }
}

absl::Status ValidatePackedShape(Method method, int n, int k) {
  const int multiple = KMultiple(method);
  if (n >= 0 && k >= 1 && k <= MaxPackedK(method) && k % multiple == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight matrix [", n, ", ", k, "]: the ", MethodName(method),
                   " kernels take n >= 0 and 1 <= k <= ", MaxPackedK(method),
                   multiple > 1 ? absl::StrCat(", k a multiple of ", multiple) : std::string()));
}

size_t PaddedRowBytes(Method method, int k) {
  return RoundUp(static_cast<size_t>(k) * ElementBytes(method), size_t{kRowAlignBytes});
}

size_t ActivationRowBytes(Method method, int k) {
  size_t bytes = 0;
  switch (ActivationFormOf(method)) {
    case ActivationForm::kBf16:
      bytes = PaddedRowBytes(Method::kBF16, k);
      break;
    case ActivationForm::kInt8Row:
      bytes = PaddedRowBytes(Method::kINT8, k);
      break;
    case ActivationForm::kInt8Blocks:
      bytes = CeilDiv(static_cast<size_t>(k), size_t{kBlockK}) * kActivationBlockBytes;
      break;
  }
  // Rows a multiple of 4096 bytes apart would share one set of the L1 cache.
  const size_t lines = bytes / kCacheLineBytes;
  return (lines % 2 == 1 ? lines : lines + 1) * kCacheLineBytes;
}

size_t PanelBytes(Method method, int k) {
  if (IsFp8(method)) return Fp8PanelBytes(method, k);
  const BlockFormat* format = BlockFormatOf(method);
  if (format != nullptr) return BlockPanelBytes(*format, static_cast<size_t>(k));
  return kPanelWidth * PaddedRowBytes(method, k);
}

size_t PackedDataBytes(Method method, int n, int k) {
  return CeilDiv(static_cast<size_t>(n), size_t{kPanelWidth}) * PanelBytes(method, k);
}

size_t PackedMatrixBytes(Method method, int n, int k) {
  return PackedDataBytes(method, n, k) + ScaleBytes(method, n);
}

PackedMatrix PackedMatrixAt(Method method, int n, int k, const uint8_t* block) {
  PackedMatrix matrix;
  matrix.method = method;
  matrix.n = n;
  matrix.k = k;
  matrix.data = block;
  if (method == Method::kINT8) {
    matrix.row_scales = reinterpret_cast<const float*>(block + PackedDataBytes(method, n, k));
  }
  return matrix;
}

void PackMatrix(const WeightSource& source, Method method, int n, int k, int panel_begin,
                int panel_end, uint8_t* block) {
  ATELIER_CHECK(ValidatePackedShape(method, n, k).ok());
  if (BlockFormatOf(method) != nullptr) {
    const QuantizingSource codes(source, method);
    return PackQuantMatrix(codes, method, n, k, panel_begin, panel_end, block);
  }
  const size_t panel_bytes = PanelBytes(method, k);
  float* scales = method == Method::kINT8
                      ? reinterpret_cast<float*>(block + PackedDataBytes(method, n, k))
                      : nullptr;
  RowEncoder encoder(method, k);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for (int column = 0; column < kPanelWidth; ++column) {
      const int row = panel * kPanelWidth + column;
      const float scale = row < n ? encoder.Encode(source, row) : encoder.EncodeZeros();
      if (scales != nullptr) scales[row] = scale;
      uint8_t* to = block + static_cast<size_t>(panel) * panel_bytes +
                    static_cast<size_t>(column) * kGroupBytes;
      const std::vector<uint8_t>& bytes = encoder.bytes();
      for (size_t from = 0; from < bytes.size(); from += kGroupBytes, to += kGroupStride) {
        std::memcpy(to, bytes.data() + from, kGroupBytes);
      }
    }
  }
}

}  // namespace atelier
