#pragma once

#include <vector>

#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"

namespace atelier::golden {

// How far from the perplexity that docs/numerics.md states for a format another machine's may lie:
// instruction sets sum bf16 products in different orders, and experts at near ties of the router
// are then others. AVX2 against AVX-512 was up to 0.8 % (MXFP4).
inline constexpr double kStatedPerplexityTolerance = 0.015;

// exp of the mean negative log-likelihood of every token of the windows but their first ones; each
// window is fed by itself. A step that fails is a test failure, and the result is NaN.
double Perplexity(ModelUnderTest& model, const std::vector<PerplexityWindow>& windows);

}  // namespace atelier::golden
