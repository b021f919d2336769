#include <immintrin.h>

#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

// Six sums, tiles 0 to 5, hide the latency of a product (52 cycles at one per 16); A and B are
// tiles 6 and 7, all zero.
constexpr int kSums = 6;
constexpr double kTileOps = 2.0 * 16 * 16;  // times the k of a tile

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t unused[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// What tile 0 holds after `step` was executed so often, so that nothing is left out.
template <typename Step>
uint32_t Run(int64_t iterations, Step step) {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int64_t i = 0; i < iterations; ++i) step();
  alignas(64) uint32_t sums[256];
  asm volatile("tilestored %%tmm0, (%0,%1,1); tilerelease" ::"r"(sums), "r"(int64_t{64})
               : "memory");
  return sums[0];
}

uint32_t RunInt8(int64_t iterations) {
  return Run(iterations, [] {
    asm volatile(
        "tdpbsud %tmm7, %tmm6, %tmm0; tdpbsud %tmm7, %tmm6, %tmm1; tdpbsud %tmm7, %tmm6, %tmm2;"
        "tdpbsud %tmm7, %tmm6, %tmm3; tdpbsud %tmm7, %tmm6, %tmm4; tdpbsud %tmm7, %tmm6, %tmm5");
  });
}

uint32_t RunBf16(int64_t iterations) {
  return Run(iterations, [] {
    asm volatile(
        "tdpbf16ps %tmm7, %tmm6, %tmm0; tdpbf16ps %tmm7, %tmm6, %tmm1;"
        "tdpbf16ps %tmm7, %tmm6, %tmm2; tdpbf16ps %tmm7, %tmm6, %tmm3;"
        "tdpbf16ps %tmm7, %tmm6, %tmm4; tdpbf16ps %tmm7, %tmm6, %tmm5");
  });
}

}  // namespace

PeakLoops PeakLoopsAmx() {
  return {{RunInt8, kSums * kTileOps * 64}, {RunBf16, kSums * kTileOps * 32}};
}

}  // namespace atelier
