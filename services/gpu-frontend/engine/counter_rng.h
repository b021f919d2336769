#pragma once

#include <cstdint>

namespace atelier {

// The finalizer of a 64-bit hash (the constants of splitmix64): every input bit reaches every
// output bit.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Randomness without a state: one number per (seed, sequence of the request, position of the
// token). So a text depends neither on the batch it was computed in nor on a preemption between
// its tokens.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t sequence = 0;
  uint32_t position = 0;
};

// Uniform in [0, 1), of 53 bits.
constexpr double UniformAt(const RandomKey& key) {
  const uint64_t place = (uint64_t{key.sequence} << 32) | key.position;
  return static_cast<double>(MixBits(MixBits(key.seed) ^ MixBits(~place)) >> 11) * 0x1p-53;
}

}  // namespace atelier
