#pragma once

#include <vector>

#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"

namespace atelier::golden {

// exp of the mean negative log-likelihood of every token of the windows but their first ones; each
// window is fed by itself. A step that fails is a test failure, and the result is NaN.
double Perplexity(ModelUnderTest& model, const std::vector<PerplexityWindow>& windows);

}  // namespace atelier::golden
