#pragma once

#include <cstddef>
#include <cstdint>

#include "libs/kernels/gemm/fp8_layout-inl.h"
#include "libs/kernels/gemm/fp8_loop-inl.h"

// FP8 weights times bf16 activations where products are fp32: both are widened to fp32 in the
// cache. In an anonymous namespace, as panel_loop-inl.h.
//
// Unit has Lanes (its vectors), kRowBlock, kMostSums (what fits its registers), and
//   WidenQuad(codes, to)       the 64 codes of 4 k to 4 x 16 floats
//   WidenActivations(at, to)   32 bf16 to 32 floats

namespace atelier {
namespace {

template <typename Unit>
struct Fp32Isa {
  using Floats = typename Unit::Lanes;
  using Vector = typename Floats::Floats;
  static constexpr size_t kRowBlock = Unit::kRowBlock;
  static constexpr size_t kSides = 16 / Floats::kWidth;

  struct Weights {
    alignas(64) float values[kFp8BlockK][16];
  };
  template <size_t kRows>
  struct Activations {
    alignas(64) float values[kRows][kFp8BlockK];
  };
  template <size_t kRows>
  using Sums = Vector[2][kRows][kSides];  // of even, of odd k

  static void Widen(const uint8_t* codes, size_t groups, Weights& weights) {
    for (size_t quad = 0; quad < groups * kFp8GroupK / 4; ++quad) {
      const uint8_t* at = codes + quad * 64;
      _mm_prefetch(reinterpret_cast<const char*>(at + kFp8Ahead), _MM_HINT_T0);
      Unit::WidenQuad(at, weights.values[quad * 4]);
    }
  }

  template <Fp8Scales kScales, size_t kRows>
  static void Add(const Fp8Rows<Weights>& block, size_t groups) {
    Activations<kRows> activations;
    for (size_t r = 0; r < kRows; ++r) {
      const uint8_t* row = block.activations + r * block.activation_stride;
      for (size_t k = 0; k < groups * kFp8GroupK; k += 32) {
        Unit::WidenActivations(row + k * 2, activations.values[r] + k);
      }
    }
    constexpr bool kByGroup = kScales == Fp8Scales::kGroups;
    const size_t count = kByGroup ? kFp8GroupK : groups * kFp8GroupK;
    for (size_t g = 0; g < (kByGroup ? groups : 1); ++g) {
      Sums<kRows> sums;
      AddUp<kRows>(block.weights, activations, g * count, count, sums);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (size_t side = 0; side < kSides; ++side) {
          AddScaled<Floats, kScales>(block.scales, g, side * Floats::kWidth,
                                     Floats::Add(sums[0][r][side], sums[1][r][side]),
                                     block.totals + r * 16);
        }
      }
    }
  }

 private:
  template <size_t kRows>
  static void AddUp(const Weights& weights, const Activations<kRows>& activations, size_t begin,
                    size_t count, Sums<kRows>& sums) {
    if constexpr (2 * kRows * kSides <= Unit::kMostSums) {
      AddProducts<kRows, 0, 2>(weights, activations, begin, count, sums);
    } else {
      AddProducts<kRows, 0, 1>(weights, activations, begin, count, sums);
      AddProducts<kRows, 1, 1>(weights, activations, begin, count, sums);
    }
  }

  // Of the k whose parity is kParity, and with kNum = 2 of the others too, ascending.
  template <size_t kRows, size_t kParity, size_t kNum>
  static void AddProducts(const Weights& weights, const Activations<kRows>& activations,
                          size_t begin, size_t count, Sums<kRows>& to) {
    Vector sums[kNum][kRows][kSides];
#pragma GCC unroll 2
    for (size_t i = 0; i < kNum; ++i) {
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (size_t side = 0; side < kSides; ++side) sums[i][r][side] = Floats::Zero();
      }
    }
    for (size_t k = begin + kParity; k < begin + count; k += 2) {
#pragma GCC unroll 2
      for (size_t i = 0; i < kNum; ++i) {
        Vector weight[kSides];
#pragma GCC unroll 2
        for (size_t side = 0; side < kSides; ++side) {
          weight[side] = Floats::Load(weights.values[k + i] + side * Floats::kWidth);
        }
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) {
          const Vector activation = Floats::Broadcast(activations.values[r] + k + i);
#pragma GCC unroll 2
          for (size_t side = 0; side < kSides; ++side) {
            Vector& sum = sums[i][r][side];
            sum = Floats::MultiplyAdd(weight[side], activation, sum);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < kNum; ++i) {
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (size_t side = 0; side < kSides; ++side) to[kParity + i][r][side] = sums[i][r][side];
      }
    }
  }
};

}  // namespace
}  // namespace atelier
