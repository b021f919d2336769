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

// The first of `items` at which the running sum of weights exceeds u times their total, 0 <= u < 1.
template <typename Items, typename WeightOf>
const auto& DrawOne(const Items& items, double u, const WeightOf& weight_of) {
  double total = 0;
  for (const auto& item : items) total += weight_of(item);
  const double target = u * total;
  double sum = 0;
  const auto* last = &items.front();  // a target rounded up to the total falls to the last possible
  for (const auto& item : items) {
    if (!(weight_of(item) > 0)) continue;
    last = &item;
    sum += weight_of(item);
    if (sum > target) break;
  }
  return *last;
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

double Sampler::Weigh(absl::Span<const float> logits, float largest, float temperature) {
  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = Weight(logits[i], largest, temperature);
    total += weights_[i];
  }
  return total;
}

void Sampler::KeepTopK(size_t k) {
  if (k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k),
                   candidates_.end(), Likelier);
  candidates_.resize(k);
}

void Sampler::CollectTopK(absl::Span<const float> logits, size_t k) {
  // Every k candidates the worse half goes; what is no better than the rest is then passed over
  // with one comparison (of equal ones the later id is the worse).
  candidates_.clear();
  float floor = kNever;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > floor)) continue;
    candidates_.push_back({logits[i], 0, static_cast<int32_t>(i)});
    if (candidates_.size() < 2 * k) continue;
    KeepTopK(k);
    floor = std::max_element(candidates_.begin(), candidates_.end(), Likelier)->logit;
  }
  KeepTopK(k);
}

void Sampler::CollectLikely(absl::Span<const float> logits, double floor) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] > 0 && weights_[i] >= floor) {
      candidates_.push_back({logits[i], weights_[i], static_cast<int32_t>(i)});
    }
  }
}

void Sampler::KeepTopP(double mass) {
  // Sorts only as far as the mass reaches: usually a few of many.
  constexpr size_t kFirstRun = 64;
  const auto at = [this](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  const size_t size = candidates_.size();
  double sum = 0;
  size_t kept = 0;
  for (size_t run = kFirstRun; kept < size && sum < mass; run *= 8) {
    const size_t end = std::min(size, kept + run);
    if (end < size) std::nth_element(at(kept), at(end), at(size), Likelier);
    std::sort(at(kept), at(end), Likelier);
    for (; kept < end && sum < mass; ++kept) sum += candidates_[kept].weight;
  }
  candidates_.resize(kept);
}

int32_t Sampler::DrawAmongTop(absl::Span<const float> logits, float largest,
                              const SamplingOptions& o, double u) {
  double total = 0;
  if (o.top_k > 0) {
    CollectTopK(logits, static_cast<size_t>(o.top_k));
    for (Candidate& c : candidates_) {
      c.weight = Weight(c.logit, largest, o.temperature);
      total += c.weight;
    }
  } else {
    total = Weigh(logits, largest, o.temperature);
    // All tokens below this weight together lack the mass to reach into top_p, however many they
    // are; half of it leaves room for rounding.
    const double beyond_top_p = (1 - o.top_p) * total / static_cast<double>(logits.size()) / 2;
    CollectLikely(logits, std::max<double>(beyond_top_p, o.min_p));
  }
  if (o.top_p < 1.0f) KeepTopP(o.top_p * total);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < o.min_p; });
  return DrawOne(candidates_, u, [](const Candidate& c) { return c.weight; }).token;
}

std::optional<int32_t> Sampler::Sample(const SamplingInput& input) {
  const absl::Span<const float> logits = Adjust(input);
  const int32_t best = ArgMax(logits);
  if (best < 0) return std::nullopt;
  const SamplingOptions& o = input.options;
  if (o.temperature == 0.0f || o.top_k == 1) return best;
  const float largest = logits[static_cast<size_t>(best)];
  const double u = UniformAt(input.random);
  if (o.top_k > 0 || o.top_p < 1.0f || o.min_p > 0.0f) return DrawAmongTop(logits, largest, o, u);
  Weigh(logits, largest, o.temperature);
  const float& drawn = DrawOne(weights_, u, [](float weight) { return weight; });
  return static_cast<int32_t>(&drawn - weights_.data());
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
