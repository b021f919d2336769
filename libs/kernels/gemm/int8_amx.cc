#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/amx-inl.h"
#include "libs/kernels/gemm/int8_avx2-inl.h"
#include "libs/kernels/gemm/int8_avx512-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

// Activations are the signed operand, weights (code + 128) the unsigned one.
struct Kernel {
  static int32_t RowOffset(const uint8_t* row, size_t bytes) { return Int8RowOffset(row, bytes); }

  template <int kAccumulator, int kA, int kB>
  static void Multiply() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kAccumulator), "i"(kA), "i"(kB));
  }

  // The sums are int32 in the memory of the results.
  static void Finish(const AmxBlock& block, int panels) {
    for (int row = 0; row < block.rows; ++row) {
      const __m512i offset = _mm512_set1_epi32(block.row_offsets[row]);
      float* out = block.out + static_cast<size_t>(row) * block.out_stride;
      for (int panel = 0; panel < panels; ++panel, out += 16) {
        const __m512i sums = _mm512_add_epi32(_mm512_loadu_si512(out), offset);
        _mm512_storeu_ps(out,
                         Scaled(sums, block.activation_scales[row], block.row_scales + panel * 16));
      }
    }
  }
};

}  // namespace

void Int8Amx(const MicroKernelArgs& args) { RunAmx<Kernel>(args); }

}  // namespace atelier
