#pragma once

#include <limits>

namespace atelier {

// What an expert does between its matrices, from the products g of gate and u of up:
//   h = c(g) * sigmoid(alpha * c(g)) * (d(u) + up_offset)
// where c clamps from above to `limit` (and to -limit from below where clamp_gate_below), and d to
// [-limit, limit]. The defaults are SwiGLU: h = silu(g) * u. A NaN stays one.
struct Activation {
  float alpha = 1.0f;
  float limit = std::numeric_limits<float>::infinity();  // > 0
  bool clamp_gate_below = false;
  float up_offset = 0.0f;

  bool IsSwiGlu() const { return *this == Activation{}; }
  friend bool operator==(const Activation&, const Activation&) = default;
};

}  // namespace atelier
