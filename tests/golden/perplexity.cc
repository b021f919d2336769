#include "tests/golden/perplexity.h"

#include <cmath>
#include <limits>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace atelier::golden {

double Perplexity(ModelUnderTest& model, const std::vector<PerplexityWindow>& windows) {
  double nll = 0;
  size_t predicted = 0;
  for (const PerplexityWindow& window : windows) {
    const auto tokens = absl::MakeConstSpan(window.tokens);
    const auto add = [&](int position, absl::Span<const float> logits) {
      const auto next = static_cast<size_t>(tokens[static_cast<size_t>(position) + 1]);
      const double top = logits[static_cast<size_t>(ArgMax(logits))];
      double sum = 0;
      for (float logit : logits) sum += std::exp(logit - top);
      nll += top + std::log(sum) - logits[next];
      ++predicted;
    };
    const absl::Status status = model.TeacherForce(tokens.first(tokens.size() - 1), 0, add);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return std::numeric_limits<double>::quiet_NaN();
  }
  return std::exp(nll / static_cast<double>(predicted));
}

}  // namespace atelier::golden
