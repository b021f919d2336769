#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/micro_kernel.h"
#include "libs/kernels/gemm/panel_loop-inl.h"

namespace atelier {
namespace {

// Subtracts the weights' offset element by element, so it needs no correction per row.
struct Tile {
  static constexpr int kRowBlock = 1;
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

  template <int kRows>
  static void Compute(const TileArgs& tile) {
    int32_t sums[16] = {};
    for (size_t g = 0; g < tile.groups; ++g) {
      for (size_t b = 0; b < 4; ++b) {
        const int32_t activation = static_cast<int8_t>(tile.activations[g * 4 + b]);
        const uint8_t* weights = tile.panel + g * kGroupStride + b;
        for (size_t c = 0; c < 16; ++c) sums[c] += activation * (weights[c * 4] - 128);
      }
    }
    for (size_t c = 0; c < 16; ++c) {
      const float scaled = static_cast<float>(sums[c]) * tile.activation_scales[0];
      tile.out[c] = scaled * tile.row_scales[c];
    }
  }
};

}  // namespace

void Int8Scalar(const MicroKernelArgs& args) { RunPanels<Tile>(args); }

}  // namespace atelier
