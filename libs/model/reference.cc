#include "libs/model/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "libs/base/check.h"

namespace atelier::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<double> MatVecExact(absl::Span<const float> weight, absl::Span<const double> x) {
  ATELIER_CHECK(!x.empty() && weight.size() % x.size() == 0);
  std::vector<double> y(weight.size() / x.size(), 0.0);
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t column = 0; column < x.size(); ++column) {
      y[row] += double{weight[row * x.size() + column]} * x[column];
    }
  }
  return y;
}

void AddBias(absl::Span<const float> bias, std::vector<double>& y) {
  ATELIER_CHECK(bias.empty() || bias.size() == y.size());
  for (size_t i = 0; i < bias.size(); ++i) y[i] += double{bias[i]};
}

std::vector<float> Rounded(absl::Span<const double> values) {
  std::vector<float> rounded;
  rounded.reserve(values.size());
  for (double value : values) rounded.push_back(static_cast<float>(value));
  return rounded;
}

std::vector<double> Exact(absl::Span<const float> values) {
  return std::vector<double>(values.begin(), values.end());
}

// Indices of the `count` largest values, largest first, the lower index first among equals.
std::vector<size_t> LargestFirst(absl::Span<const double> values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

// Scores are what weights are made of, and sum to 1 for softmax.
std::vector<double> Scores(RouterScoring scoring, absl::Span<const float> logits) {
  std::vector<double> scores;
  double max = kMinusInfinity;
  for (float logit : logits) max = std::isnan(logit) ? max : std::max(max, double{logit});
  for (float logit : logits) {
    scores.push_back(scoring == RouterScoring::kSigmoid ? 1.0 / (1.0 + std::exp(-double{logit}))
                                                        : std::exp(double{logit} - max));
  }
  if (scoring == RouterScoring::kSigmoid) return scores;
  double sum = 0;
  for (double score : scores) sum += std::isnan(score) ? 0 : score;
  for (double& score : scores) score /= sum;
  return scores;
}

// Sets the choices of every group but the best ones to -infinity. A group is as good as the sum of
// its two best choices.
void MaskGroups(const MoeConfig& config, std::vector<double>& choices) {
  const size_t num_groups = static_cast<size_t>(config.num_groups);
  const size_t group_size = choices.size() / num_groups;
  ATELIER_CHECK(group_size >= 2 && group_size * num_groups == choices.size());
  std::vector<double> group_scores;
  for (size_t group = 0; group < num_groups; ++group) {
    const absl::Span<const double> members(&choices[group * group_size], group_size);
    const std::vector<size_t> best = LargestFirst(members, 2);
    group_scores.push_back(members[best[0]] + members[best[1]]);
  }
  std::vector<size_t> order = LargestFirst(group_scores, num_groups);
  for (size_t rank = static_cast<size_t>(config.top_k_groups); rank < num_groups; ++rank) {
    std::fill_n(choices.begin() + static_cast<std::ptrdiff_t>(order[rank] * group_size), group_size,
                kMinusInfinity);
  }
}

// What experts are compared by. Softmax keeps the order of the logits, which unlike its values
// never become equal by underflow.
std::vector<double> Choices(const MoeConfig& config, absl::Span<const float> logits,
                            absl::Span<const double> scores, absl::Span<const float> bias) {
  std::vector<double> choices;
  for (size_t expert = 0; expert < logits.size(); ++expert) {
    double choice =
        config.scoring == RouterScoring::kSigmoid ? scores[expert] : double{logits[expert]};
    if (config.correction_bias) choice += double{bias[expert]};
    choices.push_back(std::isnan(choice) ? kMinusInfinity : choice);
  }
  if (config.num_groups > 1) MaskGroups(config, choices);
  return choices;
}

struct HeadShape {
  size_t num_heads;
  size_t num_kv_heads;
  size_t dim;
};

// out[dim] of query head `head` against the first `num_visible` positions.
void AttendOne(const HeadShape& shape, absl::Span<const float> query, size_t head,
               absl::Span<const float> k, absl::Span<const float> v, size_t num_visible,
               absl::Span<float> out) {
  const size_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const auto row = [&](size_t position) {
    return (position * shape.num_kv_heads + kv_head) * shape.dim;
  };
  std::vector<double> weights(num_visible, 0.0);
  for (size_t s = 0; s < num_visible; ++s) {
    for (size_t i = 0; i < shape.dim; ++i) weights[s] += double{query[i]} * double{k[row(s) + i]};
    weights[s] /= std::sqrt(static_cast<double>(shape.dim));
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - max);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < shape.dim; ++i) {
    double value = 0;
    for (size_t s = 0; s < num_visible; ++s) value += weights[s] * double{v[row(s) + i]};
    out[i] = static_cast<float>(value / sum);
  }
}

}  // namespace

std::vector<float> MatVec(absl::Span<const float> weight, absl::Span<const float> x,
                          absl::Span<const float> bias) {
  std::vector<double> y = MatVecExact(weight, Exact(x));
  AddBias(bias, y);
  return Rounded(y);
}

std::vector<float> RmsNorm(absl::Span<const float> x, absl::Span<const float> weight, double eps) {
  ATELIER_CHECK(x.size() == weight.size() && !x.empty());
  double sum_squares = 0;
  for (float value : x) sum_squares += double{value} * double{value};
  const double scale = 1.0 / std::sqrt(sum_squares / static_cast<double>(x.size()) + eps);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(static_cast<float>(double{x[i]} * scale * double{weight[i]}));
  }
  return y;
}

void ApplyRope(absl::Span<float> head, int rotary_dim, double theta, int64_t position,
               bool interleaved) {
  const size_t half = static_cast<size_t>(rotary_dim) / 2;
  ATELIER_CHECK(rotary_dim % 2 == 0 && 2 * half <= head.size());
  for (size_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / rotary_dim);
    const double angle = static_cast<double>(position) * frequency;
    float& first = head[interleaved ? 2 * i : i];
    float& second = head[interleaved ? 2 * i + 1 : i + half];
    const double low = first, high = second;
    first = static_cast<float>(low * std::cos(angle) - high * std::sin(angle));
    second = static_cast<float>(high * std::cos(angle) + low * std::sin(angle));
  }
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

std::vector<float> Attention(const AttentionConfig& config, absl::Span<const float> q,
                             absl::Span<const float> k, absl::Span<const float> v) {
  const HeadShape shape{static_cast<size_t>(config.num_heads),
                        static_cast<size_t>(config.num_kv_heads),
                        static_cast<size_t>(config.head_dim)};
  const size_t num_queries = q.size() / (shape.num_heads * shape.dim);
  const size_t num_positions = k.size() / (shape.num_kv_heads * shape.dim);
  ATELIER_CHECK(num_queries <= num_positions && k.size() == v.size());
  ATELIER_CHECK(shape.num_heads % shape.num_kv_heads == 0);
  std::vector<float> out(q.size());
  for (size_t t = 0; t < num_queries; ++t) {
    for (size_t head = 0; head < shape.num_heads; ++head) {
      const size_t offset = (t * shape.num_heads + head) * shape.dim;
      AttendOne(shape, q.subspan(offset, shape.dim), head, k, v,
                num_positions - num_queries + t + 1,
                absl::MakeSpan(out).subspan(offset, shape.dim));
    }
  }
  return out;
}

RouterChoice Route(const MoeConfig& config, absl::Span<const float> logits,
                   absl::Span<const float> correction_bias) {
  ATELIER_CHECK(logits.size() == static_cast<size_t>(config.num_experts));
  ATELIER_CHECK(correction_bias.size() == (config.correction_bias ? logits.size() : 0));
  const std::vector<double> scores = Scores(config.scoring, logits);
  const std::vector<double> choices = Choices(config, logits, scores, correction_bias);
  std::vector<double> weights;
  RouterChoice choice;
  for (size_t expert : LargestFirst(choices, static_cast<size_t>(config.top_k))) {
    choice.experts.push_back(static_cast<int32_t>(expert));
    weights.push_back(choices[expert] == kMinusInfinity ? 0.0 : scores[expert]);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double divisor = config.normalize_weights ? sum + config.normalize_epsilon : 1.0;
  for (double weight : weights) {
    const double normalized = weight == 0 ? 0 : weight / divisor;  // all may be 0
    choice.weights.push_back(static_cast<float>(normalized * config.routed_scaling_factor));
  }
  return choice;
}

std::vector<float> SwiGluFfn(const FfnWeights& weights, absl::Span<const float> x) {
  return ExpertFfn({weights, Activation{}, {}, {}, {}}, x);
}

double Gated(const Activation& activation, double gate, double up) {
  const double limit = double{activation.limit};
  if (gate > limit) gate = limit;
  if (activation.clamp_gate_below && gate < -limit) gate = -limit;
  if (up > limit) up = limit;
  if (up < -limit) up = -limit;
  const double sigmoid = 1.0 / (1.0 + std::exp(-double{activation.alpha} * gate));
  return gate * sigmoid * (up + double{activation.up_offset});
}

std::vector<float> ExpertFfn(const ExpertWeights& weights, absl::Span<const float> x) {
  const std::vector<double> exact = Exact(x);
  std::vector<double> gate = MatVecExact(weights.matrices.gate, exact);
  std::vector<double> up = MatVecExact(weights.matrices.up, exact);
  ATELIER_CHECK(gate.size() == up.size());
  AddBias(weights.gate_bias, gate);
  AddBias(weights.up_bias, up);
  for (size_t i = 0; i < gate.size(); ++i) up[i] = Gated(weights.activation, gate[i], up[i]);
  std::vector<double> out = MatVecExact(weights.matrices.down, up);
  ATELIER_CHECK(out.size() == x.size());
  AddBias(weights.down_bias, out);
  return Rounded(out);
}

}  // namespace atelier::reference
