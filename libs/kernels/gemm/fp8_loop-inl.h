#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_layout-inl.h"
#include "libs/kernels/gemm/micro_kernel.h"

// The loop around the FP8 kernels: a block of codes is widened once, to what the instruction set
// multiplies, and then meets all rows of activations from the cache. In an anonymous namespace, as
// panel_loop-inl.h.
//
// Isa has
//   kRowBlock              rows that fit the registers, a power of two
//   Weights                a block of 128 k of a panel, widened
//   Widen(codes, groups, weights)
//   Add<kScales, kRows>(rows, groups)
//   Floats                 its fp32 vectors: Lanes of fp8_avx512-inl.h shows what they have

namespace atelier {
namespace {

// Activation rows that stay in L2 while all panels pass over them; the more, the less widening.
constexpr size_t kFp8ChunkBytes = 512 * 1024;
constexpr size_t kFp8MaxChunkRows = 128;

// Rows of activations meet a block.
template <typename Weights>
struct Fp8Rows {
  const Weights& weights;
  const uint8_t* scales;  // the header of the block
  const uint8_t* activations;
  size_t activation_stride;
  float* totals;  // [rows, 16]
};

// Adds the sums of group g of a block (of the whole block, where it has one scale), of the columns
// from `column` on, to a row's totals.
template <typename Floats, Fp8Scales kScales>
inline void AddScaled(const uint8_t* scales, size_t g, size_t column, typename Floats::Floats part,
                      float* totals) {
  typename Floats::Floats sum = Floats::Load(totals + column);
  if constexpr (kScales == Fp8Scales::kRows) sum = Floats::Add(sum, part);
  if constexpr (kScales == Fp8Scales::kBlocks) {
    const auto* scale = reinterpret_cast<const float*>(scales) + column;
    sum = Floats::MultiplyAdd(part, Floats::Load(scale), sum);
  }
  if constexpr (kScales == Fp8Scales::kGroups) {
    sum = Floats::MultiplyAdd(part, Floats::GroupScales(scales + g * 16 + column), sum);
  }
  Floats::Store(totals + column, sum);
}

// totals [rows, 16] times 16 scales.
template <typename Floats>
inline void ScaleTotals(float* totals, size_t rows, const uint8_t* scales) {
  const auto* scale = reinterpret_cast<const float*>(scales);
  for (size_t i = 0; i < rows * 16; i += Floats::kWidth) {
    Floats::Store(totals + i,
                  Floats::Multiply(Floats::Load(totals + i), Floats::Load(scale + i % 16)));
  }
}

template <typename Isa, Fp8Scales kScales, size_t kRows>
inline void AddRows(Fp8Rows<typename Isa::Weights> block, size_t groups, size_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    Isa::template Add<kScales, kRows>(block, groups);
    block.activations += kRows * block.activation_stride;
    block.totals += kRows * 16;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) AddRows<Isa, kScales, kRows / 2>(block, groups, rows);
  }
}

// `rows` rows times one panel.
template <typename Isa, Fp8Scales kScales>
inline void ComputePanel(const MicroKernelArgs& args, const uint8_t* panel, size_t first,
                         size_t rows, float* out) {
  alignas(64) typename Isa::Weights weights;
  alignas(64) float totals[kFp8MaxChunkRows * 16];
  for (size_t i = 0; i < rows * 16; ++i) totals[i] = 0;
  const size_t k = static_cast<size_t>(args.k);
  const uint8_t* at = panel + Fp8PanelHeader(kScales);
  const uint8_t* activations = args.activations + first * args.activation_stride;
  for (size_t b = 0; b * kFp8BlockK < k; ++b) {
    const size_t groups = Fp8GroupsOfBlock(k, b);
    Isa::Widen(at + Fp8BlockHeader(kScales), groups, weights);
    AddRows<Isa, kScales, Isa::kRowBlock>(
        {weights, at, activations, args.activation_stride, totals}, groups, rows);
    at += Fp8BlockBytes(kScales, groups);
    activations += kFp8BlockK * 2;
  }
  if constexpr (kScales == Fp8Scales::kRows) ScaleTotals<typename Isa::Floats>(totals, rows, panel);
  for (size_t r = 0; r < rows; ++r) {
    __builtin_memcpy(out + r * args.out_stride, totals + r * 16, 16 * sizeof(float));
  }
}

template <typename Isa, Fp8Scales kScales>
void Fp8Gemm(const MicroKernelArgs& args) {
  const size_t rows = static_cast<size_t>(args.rows);
  size_t chunk = kFp8ChunkBytes / args.activation_stride / Isa::kRowBlock * Isa::kRowBlock;
  if (chunk < Isa::kRowBlock) chunk = Isa::kRowBlock;
  if (chunk > kFp8MaxChunkRows) chunk = kFp8MaxChunkRows;
  for (size_t first = 0; first < rows; first += chunk) {
    const size_t count = rows - first < chunk ? rows - first : chunk;
    for (size_t panel = 0; panel < static_cast<size_t>(args.num_panels); ++panel) {
      ComputePanel<Isa, kScales>(args, args.panels + panel * args.panel_bytes, first, count,
                                 args.out + first * args.out_stride + panel * 16);
    }
  }
}

template <typename Isa>
constexpr Fp8Kernels AllFp8Kernels() {
  return {Fp8Gemm<Isa, Fp8Scales::kBlocks>, Fp8Gemm<Isa, Fp8Scales::kRows>,
          Fp8Gemm<Isa, Fp8Scales::kGroups>};
}

}  // namespace
}  // namespace atelier
