#pragma once

#include <cstdint>

// The loop of the vector peak loops. In an anonymous namespace, as
// libs/kernels/gemm/panel_loop-inl.h.

namespace atelier {
namespace {

// Hides a value in a vector register from the optimiser, so that nothing is hoisted, folded or
// merged.
template <typename T>
inline void Hide(T& value) {
  asm volatile("" : "+v"(value));
}

// `iterations` times sums[c] = step(sums[c]) for each of kChains independent sums, from `zero`;
// returns all of them added up by `add`.
template <int kChains, typename T, typename Step, typename Add>
inline T RunChains(int64_t iterations, T zero, Step step, Add add) {
  T sums[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sums[c] = zero;
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      sums[c] = step(sums[c]);
      Hide(sums[c]);
    }
  }
#pragma GCC unroll 24
  for (int c = 1; c < kChains; ++c) sums[0] = add(sums[0], sums[c]);
  return sums[0];
}

}  // namespace
}  // namespace atelier
