#include "libs/kernels/expert_ffn.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "libs/base/check.h"
#include "libs/kernels/aligned_buffer.h"
#include "libs/kernels/gemm/block_layout-inl.h"
#include "libs/model/int8_codes.h"

namespace atelier {

// vector/gated_scalar.cc.
void GatedScalar(const GatedArgs& args);

namespace {

constexpr uint16_t kBf16NotFinite = 0x7f80;  // the exponent of infinities and NaNs
constexpr uint16_t kBf16QuietNan = 0x7fc0;

static_assert(kBlockK == kInt8BlockInputs);

BFloat16 AsBf16(float value) { return ToBFloat16(value); }
BFloat16 AsBf16(BFloat16 value) { return value; }

// A row that holds (or rounds to) anything not finite becomes NaN throughout: infinity times a zero
// weight, or two infinities, would otherwise poison some of its outputs and not others.
template <typename T>
void PrepareBf16Row(const T* input, int k, uint8_t* data) {
  const size_t bytes = static_cast<size_t>(k) * sizeof(BFloat16);
  auto* row = reinterpret_cast<uint16_t*>(data);
  uint32_t not_finite = 0;
  for (int i = 0; i < k; ++i) {
    row[i] = AsBf16(input[i]).bits;
    not_finite |= (row[i] & kBf16NotFinite) == kBf16NotFinite ? 1u : 0u;
  }
  if (not_finite != 0) {
    for (int i = 0; i < k; ++i) row[i] = kBf16QuietNan;
  }
  std::memset(data + bytes, 0, ActivationRowBytes(Method::kBF16, k) - bytes);
}

template <typename T>
float PrepareInt8Row(const T* input, int k, uint8_t* data) {
  const size_t bytes = static_cast<size_t>(k);
  std::memset(data + bytes, 0, ActivationRowBytes(Method::kINT8, k) - bytes);
  return QuantizeInt8Row(input, k, reinterpret_cast<int8_t*>(data));
}

int32_t SumOf(const int8_t* codes, int count) {
  int32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += codes[i];
  return sum;
}

void PutSums(uint8_t* record) {
  const auto* codes = reinterpret_cast<const int8_t*>(record);
  int32_t sums32[kBlockK / 32], sums16[kBlockK / 16];
  for (int i = 0; i < kBlockK / 16; ++i) sums16[i] = SumOf(codes + i * 16, 16);
  for (int i = 0; i < kBlockK / 32; ++i) sums32[i] = sums16[2 * i] + sums16[2 * i + 1];
  std::memcpy(record + kActivationSums32, sums32, sizeof(sums32));
  std::memcpy(record + kActivationSums16, sums16, sizeof(sums16));
}

// One block of up to 256 inputs; returns its scale.
template <typename T>
float PrepareInt8Block(const T* input, int k, uint8_t* record) {
  std::memset(record, 0, kActivationBlockBytes);
  const float scale = QuantizeInt8Row(input, k, reinterpret_cast<int8_t*>(record));
  PutSums(record);
  std::memcpy(record + kActivationScale, &scale, sizeof(scale));
  return scale;
}

template <typename T>
void PrepareInt8Blocks(const T* input, int k, uint8_t* data) {
  bool finite = true;
  uint8_t* record = data;
  for (int begin = 0; begin < k; begin += kBlockK, record += kActivationBlockBytes) {
    const float scale = PrepareInt8Block(input + begin, std::min(k - begin, kBlockK), record);
    finite = finite && scale == scale;
  }
  if (finite) return;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (uint8_t* at = data; at != record; at += kActivationBlockBytes) {
    std::memcpy(at + kActivationScale, &nan, sizeof(nan));
  }
}

template <typename T>
void Prepare(Method method, const T* input, size_t input_stride, int rows, int k, uint8_t* data,
             float* scales) {
  ATELIER_DCHECK(ValidatePackedShape(method, 0, k).ok());
  const size_t stride = ActivationRowBytes(method, k);
  const ActivationForm form = ActivationFormOf(method);
  for (int r = 0; r < rows; ++r, input += input_stride, data += stride) {
    switch (form) {
      case ActivationForm::kBf16:
        PrepareBf16Row(input, k, data);
        break;
      case ActivationForm::kInt8Row:
        scales[r] = PrepareInt8Row(input, k, data);
        break;
      case ActivationForm::kInt8Blocks:
        PrepareInt8Blocks(input, k, data);
        break;
    }
  }
}

// Kernels may count on no code below -127.
void CopyCodes(const int8_t* codes, int count, uint8_t* data) {
  auto* to = reinterpret_cast<int8_t*>(data);
  for (int i = 0; i < count; ++i) {
    to[i] = std::max(codes[i], static_cast<int8_t>(-kLargestInt8Code));
  }
}

}  // namespace

void PrepareRows(Method method, const float* input, size_t input_stride, int rows, int k,
                 uint8_t* data, float* scales) {
  Prepare(method, input, input_stride, rows, k, data, scales);
}

void PrepareRows(Method method, const BFloat16* input, size_t input_stride, int rows, int k,
                 uint8_t* data, float* scales) {
  Prepare(method, input, input_stride, rows, k, data, scales);
}

void PlaceQuantizedRow(Method method, const int8_t* codes, const float* scales, int k,
                       uint8_t* data, float* scale) {
  const ActivationForm form = ActivationFormOf(method);
  ATELIER_DCHECK(form != ActivationForm::kBf16);
  if (form == ActivationForm::kInt8Row) {
    std::memset(data, 0, ActivationRowBytes(method, k));
    CopyCodes(codes, k, data);
    *scale = scales[0];
    return;
  }
  for (int begin = 0; begin < k; begin += kBlockK, data += kActivationBlockBytes, ++scales) {
    std::memset(data, 0, kActivationBlockBytes);
    CopyCodes(codes + begin, std::min(k - begin, kBlockK), data);
    PutSums(data);
    std::memcpy(data + kActivationScale, scales, sizeof(*scales));
  }
}

void Gemm(const KernelTable& table, const PackedMatrix& weights, const ActivationRows& rows,
          int panel_begin, int panel_end, float* out, size_t out_stride) {
  ATELIER_DCHECK(0 <= panel_begin && panel_begin <= panel_end && panel_end <= weights.num_panels());
  const size_t first = static_cast<size_t>(panel_begin);
  MicroKernelArgs args{};
  args.activations = rows.data;
  args.activation_stride = rows.stride;
  args.activation_scales = rows.scales;
  args.rows = rows.rows;
  args.panel_bytes =
      weights.panel_stride > 0 ? weights.panel_stride : PanelBytes(weights.method, weights.k);
  args.panels = weights.data + first * args.panel_bytes;
  args.padded_k_bytes = PaddedRowBytes(weights.method, weights.k);
  args.row_scales =
      weights.row_scales == nullptr ? nullptr : weights.row_scales + first * kPanelWidth;
  args.k = weights.k;
  args.format = BlockFormatOf(weights.method);
  args.bf16_scales = weights.bf16_scales;
  args.num_panels = panel_end - panel_begin;
  args.out = out;
  args.out_stride = out_stride;
  table.kernel(weights.method, rows.rows)(args);
}

void Activate(const KernelTable& table, const ExpertView& expert, const GatedColumns& columns) {
  const Activation& activation = expert.activation;
  GatedArgs args{};
  args.gate = columns.gate;
  args.up = columns.up;
  args.count = columns.count;
  if (expert.gate_bias != nullptr) {
    args.gate_bias = expert.gate_bias + columns.first_column;
    args.up_bias = expert.up_bias + columns.first_column;
  }
  args.swiglu = activation.IsSwiGlu();
  args.alpha = activation.alpha;
  args.limit = activation.limit;
  args.gate_min =
      activation.clamp_gate_below ? -activation.limit : -std::numeric_limits<float>::infinity();
  args.up_offset = activation.up_offset;
  table.gated()(args);
}

void SwiGlu(float* gate, const float* up, size_t count) {
  GatedArgs args{};
  args.gate = gate;
  args.up = up;
  args.count = count;
  args.swiglu = true;
  GatedScalar(args);
}

void RunExpert(const KernelTable& table, const ExpertView& expert, const ActivationRows& rows,
               float* out, size_t out_stride) {
  ATELIER_DCHECK(ActivationFormOf(expert.gate.method) == ActivationFormOf(expert.up.method));
  RunExpertOnForms(table, expert, {rows, rows}, out, out_stride);
}

void RunExpertOnForms(const KernelTable& table, const ExpertView& expert, const ExpertRows& rows,
                      float* out, size_t out_stride) {
  const Method method = expert.down.method;
  const int panels = expert.gate.num_panels();
  const size_t num_rows = static_cast<size_t>(rows.gate.rows);
  const size_t width = static_cast<size_t>(panels) * kPanelWidth;
  AlignedBuffer<float> gate, up, scales;
  gate.Reserve(num_rows * width);
  up.Reserve(num_rows * width);
  Gemm(table, expert.gate, rows.gate, 0, panels, gate.data(), width);
  Gemm(table, expert.up, rows.up, 0, panels, up.data(), width);
  for (size_t r = 0; r < num_rows; ++r) {
    Activate(table, expert, {gate.data() + r * width, up.data() + r * width, 0, width});
  }

  AlignedBuffer<uint8_t> prepared;
  ActivationRows inner;
  inner.stride = ActivationRowBytes(method, expert.down.k);
  inner.rows = rows.gate.rows;
  inner.data = prepared.Reserve(num_rows * inner.stride);
  inner.scales = scales.Reserve(num_rows);
  PrepareRows(method, gate.data(), width, inner.rows, expert.down.k, prepared.data(),
              scales.data());
  Gemm(table, expert.down, inner, 0, expert.down.num_panels(), out, out_stride);
  if (expert.down_bias == nullptr) return;
  for (size_t r = 0; r < num_rows; ++r) {
    for (size_t c = 0; c < static_cast<size_t>(expert.down.n); ++c) {
      out[r * out_stride + c] += expert.down_bias[c];
    }
  }
}

}  // namespace atelier
