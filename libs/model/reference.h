#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "libs/model/activation.h"
#include "libs/model/model_config.h"

// The model's mathematics, written slowly and obviously, in double: the oracle that kernels, device
// operations and the graph are compared with. Nothing here rounds between steps; results are
// rounded to float once. All matrices are row-major [out, in]. Sizes that disagree are a bug of the
// caller (checked). Pure functions.
namespace atelier::reference {

// y[rows] = W[rows, columns] x[columns] (+ bias[rows] unless empty).
std::vector<float> MatVec(absl::Span<const float> weight, absl::Span<const float> x,
                          absl::Span<const float> bias = {});

// x / sqrt(mean(x^2) + eps) * weight.
std::vector<float> RmsNorm(absl::Span<const float> x, absl::Span<const float> weight, double eps);

// Rotates one head's first rotary_dim dims in place, pairing dims i and i + rotary_dim / 2, or
// (interleaved) 2i and 2i + 1.
void ApplyRope(absl::Span<float> head, int rotary_dim, double theta, int64_t position,
               bool interleaved = false);

double Silu(double x);

// Causal grouped-query attention of one sequence. q [T, num_heads, d] are its last T positions;
// k and v [S, num_kv_heads, d] all S >= T of them. Scores are scaled by d^-0.5. [T, num_heads, d].
std::vector<float> Attention(const AttentionConfig& config, absl::Span<const float> q,
                             absl::Span<const float> k, absl::Span<const float> v);

// The experts of one token, best first, and their weights with routed_scaling_factor folded in.
struct RouterChoice {
  std::vector<int32_t> experts;  // [top_k]
  std::vector<float> weights;    // [top_k]
};

// logits [num_experts]; correction_bias [num_experts] if config.correction_bias, else empty. Equal
// values: the lower index wins, for groups too. A NaN counts as -infinity; an expert that was
// chosen although its value is -infinity has weight 0.
RouterChoice Route(const MoeConfig& config, absl::Span<const float> logits,
                   absl::Span<const float> correction_bias);

// One SwiGLU block: down (silu(gate x) * (up x)).
struct FfnWeights {
  absl::Span<const float> gate;  // [I, H]
  absl::Span<const float> up;    // [I, H]
  absl::Span<const float> down;  // [H, I]
};
std::vector<float> SwiGluFfn(const FfnWeights& weights, absl::Span<const float> x);

// What Activation says of one element.
double Gated(const Activation& activation, double gate, double up);

// One expert of any activation: down Gated(gate x + gate_bias, up x + up_bias) + down_bias. Empty
// biases are none.
struct ExpertWeights {
  FfnWeights matrices;
  Activation activation{};
  absl::Span<const float> gate_bias;  // [I]
  absl::Span<const float> up_bias;    // [I]
  absl::Span<const float> down_bias;  // [H]
};
std::vector<float> ExpertFfn(const ExpertWeights& weights, absl::Span<const float> x);

}  // namespace atelier::reference
