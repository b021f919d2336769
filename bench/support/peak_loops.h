#pragma once

#include <cstddef>
#include <cstdint>

// Loops that do nothing but what a limit is about. Plain C types only and no inline function, as
// libs/kernels/gemm/micro_kernel.h says and for the same reason.

namespace atelier {

// Independent multiply-adds on registers.
struct PeakLoop {
  uint32_t (*run)(int64_t iterations) = nullptr;  // null: this ISA has none of its own
  double ops_per_iteration = 0;                   // 2 per multiply-add
};

// The best sequence an ISA has for exact int8 products (u8 x s8, summed in 32 bits) and for bf16
// products (summed in fp32).
struct PeakLoops {
  PeakLoop int8;
  PeakLoop bf16;
};

PeakLoops PeakLoopsScalar();
PeakLoops PeakLoopsAvx2();
PeakLoops PeakLoopsAvx512();
PeakLoops PeakLoopsAvx512Vnni();
PeakLoops PeakLoopsAvx512Bf16();
PeakLoops PeakLoopsAmx();

// Reads `bytes` (a multiple of 256, 64-byte aligned) once, ascending, as one stream.
uint32_t ReadStreamScalar(const uint8_t* data, size_t bytes);
uint32_t ReadStreamAvx2(const uint8_t* data, size_t bytes);
uint32_t ReadStreamAvx512(const uint8_t* data, size_t bytes);

}  // namespace atelier
