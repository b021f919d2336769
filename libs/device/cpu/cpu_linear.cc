#include <algorithm>
#include <cstring>

#include "libs/base/check.h"
#include "libs/base/checked_math.h"
#include "libs/device/cpu/cpu_matrix.h"
#include "libs/device/cpu/cpu_ops.h"
#include "libs/kernels/expert_ffn.h"

namespace atelier::cpu_ops {
namespace {

// Below this many multiply-adds a second thread costs more than it saves (about 10 us of wake-up).
constexpr int64_t kMinWorkPerPiece = int64_t{1} << 17;

ActivationRows Prepare(const CpuContext& cpu, const LinearArgs& args, int k) {
  const size_t stride = ActivationRowBytes(Method::kBF16, k);
  uint8_t* data = cpu.scratch.Reserve(stride * static_cast<size_t>(args.rows));
  const int64_t grain = std::max<int64_t>(1, kMinWorkPerPiece / 8 / k);
  cpu.threads.ParallelFor(args.rows, grain, [&](int64_t begin, int64_t end) {
    PrepareRows(Method::kBF16, args.x + static_cast<size_t>(begin) * args.x_stride, args.x_stride,
                static_cast<int>(end - begin), k, data + static_cast<size_t>(begin) * stride,
                nullptr);
  });
  return ActivationRows{data, stride, nullptr, args.rows};
}

void AddBias(const LinearArgs& args, int begin, int end) {
  if (args.bias == nullptr) return;
  for (int r = 0; r < args.rows; ++r) {
    float* out = args.out + static_cast<size_t>(r) * args.out_stride;
    for (int n = begin; n < end; ++n) out[n] += args.bias[n];
  }
}

// A last panel that is wider than the matrix goes through a buffer, so that nothing beyond column n
// is written.
void RaggedPanel(const CpuContext& cpu, const PackedMatrix& weight, const ActivationRows& rows,
                 const LinearArgs& args) {
  const int panel = weight.n / kPanelWidth;
  const int first = panel * kPanelWidth;
  constexpr int kRowsAtOnce = 16;
  alignas(64) float buffer[kRowsAtOnce * kPanelWidth];
  for (int r = 0; r < rows.rows; r += kRowsAtOnce) {
    const int count = std::min(kRowsAtOnce, rows.rows - r);
    const ActivationRows part{rows.data + static_cast<size_t>(r) * rows.stride, rows.stride,
                              nullptr, count};
    Gemm(cpu.kernels, weight, part, panel, panel + 1, buffer, kPanelWidth);
    for (int i = 0; i < count; ++i) {
      std::memcpy(args.out + static_cast<size_t>(r + i) * args.out_stride + first,
                  buffer + i * kPanelWidth, static_cast<size_t>(weight.n - first) * sizeof(float));
    }
  }
}

}  // namespace

void Linear(const CpuContext& cpu, const LinearArgs& args) {
  const PackedMatrix& weight = static_cast<const CpuMatrix*>(args.weight)->packed();
  ATELIER_DCHECK(args.out_stride >= static_cast<size_t>(weight.n));
  if (args.rows == 0) return;
  const ActivationRows rows = Prepare(cpu, args, weight.k);
  const int whole_panels = weight.n / kPanelWidth;
  const int64_t panel_work = int64_t{args.rows} * weight.k * kPanelWidth;
  const int64_t grain = std::max<int64_t>(
      {1, kMinWorkPerPiece / panel_work, whole_panels / (4 * cpu.threads.num_threads())});
  cpu.threads.ParallelFor(weight.num_panels(), grain, [&](int64_t begin, int64_t end) {
    const int first = static_cast<int>(begin);
    const int last = std::min(static_cast<int>(end), whole_panels);
    if (first < last)
      Gemm(cpu.kernels, weight, rows, first, last, args.out + first * kPanelWidth, args.out_stride);
    if (end > whole_panels) RaggedPanel(cpu, weight, rows, args);
    AddBias(args, first * kPanelWidth, std::min(static_cast<int>(end) * kPanelWidth, weight.n));
  });
}

}  // namespace atelier::cpu_ops
