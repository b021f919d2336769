#include "bench/support/peak_loops.h"

namespace atelier {
namespace {

constexpr int kChains = 16;

// Opaque to the optimiser, so that nothing is hoisted or folded.
template <typename T>
T Opaque(T value) {
  volatile T hidden = value;
  return hidden;
}

template <typename T>
uint32_t Run(int64_t iterations) {
  T sums[kChains] = {};
  const T factor = Opaque<T>(1), term = Opaque<T>(2);
  for (int64_t i = 0; i < iterations; ++i) {
    for (int c = 0; c < kChains; ++c) sums[c] += factor * (term + sums[c]);
  }
  T total = 0;
  for (T sum : sums) total += sum;
  return static_cast<uint32_t>(total > 0);
}

}  // namespace

PeakLoops PeakLoopsScalar() {
  return {{Run<uint32_t>, 2.0 * kChains}, {Run<float>, 2.0 * kChains}};
}

uint32_t ReadStreamScalar(const uint8_t* data, size_t bytes) {
  uint64_t sums[4] = {};
  for (size_t i = 0; i < bytes; i += 32) {
    for (size_t j = 0; j < 4; ++j) {
      uint64_t word;
      __builtin_memcpy(&word, data + i + j * 8, sizeof(word));
      sums[j] |= word;
    }
  }
  return static_cast<uint32_t>(sums[0] | sums[1] | sums[2] | sums[3]);
}

}  // namespace atelier
