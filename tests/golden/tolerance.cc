#include "tests/golden/tolerance.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "libs/base/check.h"
#include "tests/golden/model_under_test.h"

namespace atelier::golden {
namespace {

double Median(std::vector<float> values) {
  ATELIER_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double RelativeError(absl::Span<const float> ours, absl::Span<const float> reference) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference = double{ours[i]} - double{reference[i]};
    error += difference * difference;
    norm += double{reference[i]} * double{reference[i]};
  }
  return std::sqrt(error / norm);
}

}  // namespace

Tolerance ToleranceFrom(const std::vector<float>& noise) { return {Median(noise)}; }

double Spread(absl::Span<const float> logits) {
  double sum = 0, squares = 0;
  for (float logit : logits) {
    sum += logit;
    squares += double{logit} * double{logit};
  }
  const double count = static_cast<double>(logits.size());
  return std::sqrt(squares / count - (sum / count) * (sum / count));
}

SequenceComparison::SequenceComparison(const Sequence& sequence, int vocab_size, Method method)
    : sequence_(sequence),
      vocab_size_(vocab_size),
      tolerance_(
          ToleranceFrom(method == Method::kBF16 ? sequence.noise_bf16 : sequence.noise_int8)) {}

void SequenceComparison::Add(int position, absl::Span<const float> logits) {
  const size_t at = static_cast<size_t>(position);
  ++num_seen_;
  const bool equal = ArgMax(logits) == sequence_.top1[at];
  equal_top1_ += equal;
  const bool stored =
      next_row_ < sequence_.logit_rows.size() && sequence_.logit_rows[next_row_] == position;
  const size_t row = stored ? next_row_++ : 0;
  if (sequence_.router_gap[at] < tolerance_.decisive()) return;
  ++num_clear_;
  wrong_top1_ += !equal && sequence_.margin[at] > tolerance_.decisive() * Spread(logits);
  if (!stored) return;
  const size_t width = static_cast<size_t>(vocab_size_);
  const double error =
      RelativeError(logits, absl::MakeConstSpan(sequence_.logits).subspan(row * width, width));
  ++num_compared_;
  sum_squared_ += error * error;
  worst_error_ = std::max(worst_error_, error);
}

double SequenceComparison::clear_share() const {
  return static_cast<double>(num_clear_) / std::max(num_seen_, 1);
}

double SequenceComparison::sequence_error() const {
  return std::sqrt(sum_squared_ / std::max(num_compared_, 1));
}

std::string SequenceComparison::Summary() const {
  return absl::StrFormat(
      "%s: %d positions, %.0f%% clear, relative error %.2e (bound %.2e), worst %.2e (bound %.2e), "
      "top-1 equal at %d, wrong although decisive at %d",
      sequence_.name, num_seen_, 100 * clear_share(), sequence_error(), tolerance_.sequence_error(),
      worst_error_, tolerance_.position_error(), equal_top1_, wrong_top1_);
}

}  // namespace atelier::golden
