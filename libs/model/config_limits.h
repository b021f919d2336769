#pragma once

#include <cstdint>

namespace atelier {

// Upper bounds of a model's sizes: several times what any published model has, and small enough
// that a broken file is refused instead of believed.
inline constexpr int64_t kMaxHiddenSize = 1 << 16;
inline constexpr int64_t kMaxLayers = 1 << 10;
inline constexpr int64_t kMaxVocabSize = 1 << 22;
inline constexpr int64_t kMaxPositions = 1 << 26;
inline constexpr int64_t kMaxHeads = 1 << 10;
inline constexpr int64_t kMaxHeadDim = 1 << 10;
inline constexpr int64_t kMaxExperts = 1 << 12;
inline constexpr int64_t kMaxIntermediateSize = 1 << 20;

// No single matrix has more elements, so an index into one fits an int. (All experts of a layer
// together do not.)
inline constexpr int64_t kMaxMatrixElements = INT32_MAX;

}  // namespace atelier
