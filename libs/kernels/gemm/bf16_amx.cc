#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/amx-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

namespace atelier {
namespace {

// Per tile of 32 k: even k, odd k, each ascending and fused; then their sum is added to the
// element's. The tiles hold the results, so nothing is left to do with them.
struct Kernel : Bf16Products {
  static int32_t RowOffset(const uint8_t*, size_t) { return 0; }

  static void Finish(const AmxBlock&, int) {}
};

}  // namespace

void Bf16Amx(const MicroKernelArgs& args) { RunAmx<Kernel>(args); }

}  // namespace atelier
