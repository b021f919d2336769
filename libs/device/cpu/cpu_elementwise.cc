#include <algorithm>
#include <cmath>
#include <cstring>

#include "libs/device/cpu/cpu_ops.h"
#include "libs/kernels/expert_ffn.h"

namespace atelier::cpu_ops {
namespace {

constexpr int64_t kElementsPerPiece = 8192;

int64_t RowGrain(int width) { return std::max<int64_t>(1, kElementsPerPiece / std::max(width, 1)); }

void NormRow(const float* x, const float* weight, float* out, int width, float eps) {
  double squares = 0;
  for (int j = 0; j < width; ++j) squares += static_cast<double>(x[j]) * static_cast<double>(x[j]);
  const float inverse =
      static_cast<float>(1.0 / std::sqrt(squares / width + static_cast<double>(eps)));
  for (int j = 0; j < width; ++j) out[j] = x[j] * inverse * weight[j];
}

// Pair i is dims i * step and i * step + distance.
void RotateHead(float* head, const float* cos_sin, int half, bool interleaved) {
  const int step = interleaved ? 2 : 1, distance = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    float& low = head[i * step];
    float& high = head[i * step + distance];
    const float first = low, second = high;
    low = first * cos_sin[i] - second * cos_sin[i + half];
    high = second * cos_sin[i] + first * cos_sin[i + half];
  }
}

}  // namespace

void Embed(const CpuContext& cpu, const EmbedArgs& args) {
  const size_t hidden = static_cast<size_t>(args.hidden);
  cpu.threads.ParallelFor(args.rows, RowGrain(args.hidden), [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      const BFloat16* row = args.table + static_cast<size_t>(args.tokens[r]) * hidden;
      for (size_t j = 0; j < hidden; ++j) args.out[r * hidden + j] = ToFloat(row[j]);
    }
  });
}

void RmsNorm(const CpuContext& cpu, const RmsNormArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  cpu.threads.ParallelFor(args.rows, RowGrain(args.width), [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      NormRow(args.x + r * width, args.weight, args.out + r * width, args.width, args.eps);
    }
  });
}

void HeadNorm(const CpuContext& cpu, const HeadNormArgs& args) {
  cpu.threads.ParallelFor(
      args.rows, RowGrain(args.heads * args.head_dim), [&](int64_t begin, int64_t end) {
        for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
          for (size_t h = 0; h < static_cast<size_t>(args.heads); ++h) {
            float* head = args.x + r * args.row_stride + h * static_cast<size_t>(args.head_dim);
            NormRow(head, args.weight, head, args.head_dim, args.eps);
          }
        }
      });
}

void RopeTable(const CpuContext& cpu, const RopeTableArgs& args) {
  const int half = args.rotary_dim / 2;
  cpu.threads.ParallelFor(
      args.rows, RowGrain(args.rotary_dim * 16), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          float* row = args.cos_sin + static_cast<size_t>(r) * static_cast<size_t>(args.rotary_dim);
          for (int i = 0; i < half; ++i) {
            // In double: at position 10^5 an fp32 angle is off by up to 0.004.
            const double angle =
                args.positions[r] * std::pow(args.theta, -2.0 * i / args.rotary_dim);
            row[i] = static_cast<float>(std::cos(angle));
            row[i + half] = static_cast<float>(std::sin(angle));
          }
        }
      });
}

void Rope(const CpuContext& cpu, const RopeArgs& args) {
  cpu.threads.ParallelFor(
      args.rows, RowGrain(args.heads * args.rotary_dim), [&](int64_t begin, int64_t end) {
        for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
          const float* cos_sin = args.cos_sin + r * static_cast<size_t>(args.rotary_dim);
          for (size_t h = 0; h < static_cast<size_t>(args.heads); ++h) {
            RotateHead(args.x + r * args.row_stride + h * static_cast<size_t>(args.head_dim),
                       cos_sin, args.rotary_dim / 2, args.interleaved);
          }
        }
      });
}

void SwiGlu(const CpuContext& cpu, const SwiGluArgs& args) {
  const size_t width = static_cast<size_t>(args.intermediate);
  cpu.threads.ParallelFor(
      args.rows, RowGrain(args.intermediate * 4), [&](int64_t begin, int64_t end) {
        for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
          const float* gate = args.gate_up + r * 2 * width;
          std::memcpy(args.out + r * width, gate, width * sizeof(float));
          atelier::SwiGlu(args.out + r * width, gate + width, width);
        }
      });
}

void Add(const CpuContext& cpu, const AddArgs& args) {
  cpu.threads.ParallelFor(static_cast<int64_t>(args.count), kElementsPerPiece,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t i = begin; i < end; ++i) args.x[i] += args.y[i];
                          });
}

void GateRows(const CpuContext& cpu, const GateRowsArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  cpu.threads.ParallelFor(args.rows, RowGrain(args.width), [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      const float factor = 1.0f / (1.0f + std::exp(-args.gate[r]));
      for (size_t j = 0; j < width; ++j) args.x[r * width + j] *= factor;
    }
  });
}

void GatherRows(const CpuContext&, const GatherRowsArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  for (size_t r = 0; r < static_cast<size_t>(args.rows); ++r) {
    std::memcpy(args.out + r * width, args.x + static_cast<size_t>(args.indices[r]) * width,
                width * sizeof(float));
  }
}

void AddWeightedRows(const CpuContext& cpu, const AddWeightedRowsArgs& args) {
  const size_t width = static_cast<size_t>(args.width);
  cpu.threads.ParallelFor(args.rows, RowGrain(args.width), [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      float* out = args.out + static_cast<size_t>(args.indices[r]) * width;
      for (size_t j = 0; j < width; ++j) out[j] += args.weights[r] * args.x[r * width + j];
    }
  });
}

void ToBFloat16(const CpuContext& cpu, const ToBFloat16Args& args) {
  cpu.threads.ParallelFor(static_cast<int64_t>(args.count), kElementsPerPiece,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t i = begin; i < end; ++i)
                              args.out[i] = atelier::ToBFloat16(args.x[i]);
                          });
}

}  // namespace atelier::cpu_ops
