#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "libs/model/dtype.h"
#include "tests/golden/golden_file.h"

namespace atelier::golden {

// How far logits may be from the reference's: docs/numerics.md, "Whole model", which derives the
// factors.
struct Tolerance {
  // Median relative error of a sequence's logits that rounding alone causes, computed by the
  // reference.
  double noise = 0;

  double sequence_error() const { return 1.8 * noise; }  // RMS over a sequence's positions
  double position_error() const { return 3.0 * noise; }  // of any one position
  // A gap between two logits that rounding does not close, in units of the logits' spread.
  double decisive() const { return 6.0 * noise; }
};

// `noise` per position, at least one.
Tolerance ToleranceFrom(const std::vector<float>& noise);

// Standard deviation about the mean.
double Spread(absl::Span<const float> logits);

// One sequence's logits against the reference's, position by position.
class SequenceComparison {
 public:
  SequenceComparison(const Sequence& sequence, int vocab_size, Method method);

  // position counts from sequence.first.
  void Add(int position, absl::Span<const float> logits);

  // Positions where no expert choice is a near-tie: only these are held to the bounds.
  int num_clear() const { return num_clear_; }
  int num_compared() const { return num_compared_; }  // clear ones whose logits are stored
  double clear_share() const;
  double sequence_error() const;  // RMS over the compared positions
  double worst_error() const { return worst_error_; }
  int wrong_top1() const { return wrong_top1_; }  // where the margin is decisive
  int equal_top1() const { return equal_top1_; }  // of all positions
  const Tolerance& tolerance() const { return tolerance_; }
  // One line for people.
  std::string Summary() const;

 private:
  const Sequence& sequence_;
  int vocab_size_;
  Tolerance tolerance_;
  size_t next_row_ = 0;
  int num_seen_ = 0;
  int num_clear_ = 0;
  int num_compared_ = 0;
  int wrong_top1_ = 0;
  int equal_top1_ = 0;
  double sum_squared_ = 0;
  double worst_error_ = 0;
};

}  // namespace atelier::golden
