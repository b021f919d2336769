#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

inline float LoadBf16(const uint8_t* at) {
  uint16_t half;
  __builtin_memcpy(&half, at, sizeof(half));
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// One fp32 sum per element, in ascending k.
struct Tile {
  static constexpr int kRowBlock = 1;
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    float sums[16] = {};
    for (size_t g = 0; g < tile.groups; ++g) {
      const float even = LoadBf16(tile.activations + g * 4);
      const float odd = LoadBf16(tile.activations + g * 4 + 2);
      const uint8_t* weights = tile.panel + g * kGroupStride;
      for (size_t c = 0; c < 16; ++c) {
        sums[c] += even * LoadBf16(weights + c * 4);
        sums[c] += odd * LoadBf16(weights + c * 4 + 2);
      }
    }
    for (size_t c = 0; c < 16; ++c) tile.out[c] = sums[c];
  }
};

}  // namespace

void Bf16Scalar(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
