#pragma once

#include "libs/kernels/pack.h"

namespace atelier {

// Sums over elements: what rounding has changed, and what there was.
struct SquaredSums {
  double error = 0;   // Σ (w - kept)²; NaN where a scale is
  double weight = 0;  // Σ w²

  SquaredSums& operator+=(const SquaredSums& other) {
    error += other.error;
    weight += other.weight;
    return *this;
  }
  // |w - kept| / |w|, Euclidean; 0 where there is no weight.
  double Relative() const;
};

// Of rows [row_begin, row_end) of a float matrix with k columns that PackMatrix turns into
// `method`. Quantises them as it does, so costs about as much.
SquaredSums QuantizeError(const WeightSource& source, Method method, int k, int row_begin,
                          int row_end);

}  // namespace atelier
