#include "services/gpu-frontend/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "libs/base/check.h"

namespace atelier {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the largest logit, the lowest of equal ones; -1 if all are NaN or minus infinity.
int32_t ArgMax(absl::Span<const float> logits) {
  float best = kNever;
  int32_t best_idx = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      best_idx = static_cast<int32_t>(i);
    }
  }
  return best_idx;
}

// Probability relative to the largest logit's. Equality is asked first because the largest may be
// +infinity; every comparison with a NaN is false, so a NaN weighs nothing.
float Weight(float logit, float largest, float temperature) {
  if (logit == largest) return 1.0f;
  if (!(logit > kNever)) return 0.0f;
  return std::exp((logit - largest) / temperature);
}

// The first index at which the running sum of `weights` exceeds u times their total, 0 <= u < 1.
size_t DrawIndex(absl::Span<const float> weights, double u) {
  double total = 0;
  for (const float w : weights) total += w;
  const double target = u * total;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > target) return i;
  }
  return weights.size() - 1;
}

}  // namespace

bool HasPenalty(const SamplingOptions& options) {
  return options.repetition_penalty != 1.0f || options.frequency_penalty != 0.0f ||
         options.presence_penalty != 0.0f;
}

bool Sampler::Likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

void Sampler::Penalize(const SamplingInput& input) {
  const SamplingOptions& o = input.options;
  for (const auto& [token, num_output] : input.history.counts()) {
    float& logit = adjusted_[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / o.repetition_penalty : logit * o.repetition_penalty;
    if (num_output > 0) {
      logit -= o.frequency_penalty * static_cast<float>(num_output) + o.presence_penalty;
    }
  }
}

absl::Span<const float> Sampler::Adjust(const SamplingInput& input) {
  const bool has_penalty = HasPenalty(input.options);
  if (!has_penalty && input.options.logit_bias.empty() && input.forbidden.empty()) {
    return input.logits;
  }
  adjusted_.assign(input.logits.begin(), input.logits.end());
  for (const auto& [token, bias] : input.options.logit_bias) {
    adjusted_[static_cast<size_t>(token)] += bias;
  }
  if (has_penalty) Penalize(input);
  for (const int32_t token : input.forbidden) adjusted_[static_cast<size_t>(token)] = kNever;
  return adjusted_;
}

void Sampler::KeepTopK(size_t k) {
  if (k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k),
                   candidates_.end(), Likelier);
  candidates_.resize(k);
}

void Sampler::KeepTopP(double share, double total) {
  // Sorts only as far as the share reaches: usually a few of a large vocabulary.
  constexpr size_t kFirstRun = 64;
  const auto at = [this](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  double sum = 0;
  size_t sorted = 0;
  for (size_t run = kFirstRun; sorted < candidates_.size(); run *= 8) {
    const size_t end = std::min(candidates_.size(), sorted + run);
    if (end < candidates_.size())
      std::nth_element(at(sorted), at(end), at(candidates_.size()), Likelier);
    std::sort(at(sorted), at(end), Likelier);
    for (; sorted < end; ++sorted) {
      if (sum >= share * total) break;
      sum += weights_[static_cast<size_t>(candidates_[sorted].token)];
    }
    if (sum >= share * total) break;
  }
  candidates_.resize(std::max<size_t>(sorted, 1));
}

int32_t Sampler::DrawAmongTop(absl::Span<const float> logits, float largest,
                              const SamplingInput& input) {
  const SamplingOptions& o = input.options;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kNever) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  if (o.top_k > 0) KeepTopK(static_cast<size_t>(o.top_k));
  weights_.resize(logits.size());
  double total = 0;
  for (const Candidate& c : candidates_) {
    const float weight = Weight(c.logit, largest, o.temperature);
    weights_[static_cast<size_t>(c.token)] = weight;
    total += weight;
  }
  if (o.top_p < 1.0f) KeepTopP(o.top_p, total);
  std::erase_if(candidates_, [&](const Candidate& c) {
    return weights_[static_cast<size_t>(c.token)] < o.min_p;
  });
  std::vector<float>& kept = adjusted_;  // nothing reads the adjusted logits any more
  kept.resize(candidates_.size());
  std::transform(candidates_.begin(), candidates_.end(), kept.begin(),
                 [this](const Candidate& c) { return weights_[static_cast<size_t>(c.token)]; });
  return candidates_[DrawIndex(kept, UniformAt(input.random))].token;
}

int32_t Sampler::Draw(absl::Span<const float> logits, float largest, const SamplingInput& input) {
  weights_.resize(logits.size());
  std::transform(logits.begin(), logits.end(), weights_.begin(),
                 [&](float logit) { return Weight(logit, largest, input.options.temperature); });
  return static_cast<int32_t>(DrawIndex(weights_, UniformAt(input.random)));
}

std::optional<int32_t> Sampler::Sample(const SamplingInput& input) {
  const absl::Span<const float> logits = Adjust(input);
  const int32_t best = ArgMax(logits);
  if (best < 0) return std::nullopt;
  const SamplingOptions& o = input.options;
  if (o.temperature == 0.0f || o.top_k == 1) return best;
  const float largest = logits[static_cast<size_t>(best)];
  if (o.top_k <= 0 && o.top_p >= 1.0f && o.min_p <= 0.0f) return Draw(logits, largest, input);
  return DrawAmongTop(logits, largest, input);
}

std::optional<TokenLogprob> LogprobOf(int32_t token, int num_top, absl::Span<const float> logits) {
  const int32_t best = ArgMax(logits);
  if (best < 0) return std::nullopt;
  const float largest = logits[static_cast<size_t>(best)];
  using Entry = std::pair<int32_t, float>;  // token, logit
  const auto likelier = [](const Entry& a, const Entry& b) {
    return a.second > b.second || (a.second == b.second && a.first < b.first);
  };
  std::vector<Entry> top;  // a heap whose front is the least likely
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += Weight(logits[i], largest, 1.0f);
    const Entry entry(static_cast<int32_t>(i), logits[i]);
    if (!(logits[i] > kNever) || num_top <= 0) continue;
    if (static_cast<int>(top.size()) == num_top) {
      if (!likelier(entry, top.front())) continue;
      std::pop_heap(top.begin(), top.end(), likelier);
      top.pop_back();
    }
    top.push_back(entry);
    std::push_heap(top.begin(), top.end(), likelier);
  }
  std::sort_heap(top.begin(), top.end(), likelier);
  const double log_sum = std::log(sum);
  const auto logprob = [&](float logit) {
    if (logit == largest) return static_cast<float>(-log_sum);
    return logit > kNever ? static_cast<float>(double{logit} - largest - log_sum) : kNever;
  };
  for (Entry& entry : top) entry.second = logprob(entry.second);
  return TokenLogprob{token, logprob(logits[static_cast<size_t>(token)]), std::move(top)};
}

}  // namespace atelier
