#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "libs/device/cpu/cpu_ops.h"

namespace atelier::cpu_ops {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// What one row's choice needs; reused over the rows of a piece.
struct RouterScratch {
  explicit RouterScratch(const RouteArgs& args)
      : scores(static_cast<size_t>(args.experts)), choice(scores.size()), order(scores.size()) {}
  std::vector<float> scores;  // what weights are made of
  std::vector<float> choice;  // what the best are chosen by
  std::vector<int32_t> order;
};

float WithoutNan(float value) { return std::isnan(value) ? kNever : value; }

void Softmax(const float* logits, std::vector<float>& scores) {
  float max = kNever;
  for (size_t e = 0; e < scores.size(); ++e) max = std::max(max, WithoutNan(logits[e]));
  float total = 0;
  for (size_t e = 0; e < scores.size(); ++e)
    total += scores[e] = std::exp(WithoutNan(logits[e]) - max);
  for (float& score : scores) score /= total;
}

void Sigmoid(const float* logits, std::vector<float>& scores) {
  for (size_t e = 0; e < scores.size(); ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
}

// A group is as good as the sum of its two best experts.
float GroupValue(const float* begin, const float* end) {
  float best = kNever, second = kNever;
  for (const float* value = begin; value != end; ++value) {
    if (*value > best) {
      second = best;
      best = *value;
    } else {
      second = std::max(second, *value);
    }
  }
  return best + second;
}

void SortBest(std::vector<int32_t>& order, size_t count, size_t best,
              const std::vector<float>& values) {
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best),
                    order.begin() + static_cast<std::ptrdiff_t>(count), [&](int32_t a, int32_t b) {
                      const float left = values[static_cast<size_t>(a)],
                                  right = values[static_cast<size_t>(b)];
                      return left != right ? left > right : a < b;
                    });
}

// Experts outside the best groups can't be chosen.
void MaskGroups(const RouteArgs& args, RouterScratch& scratch) {
  const size_t groups = static_cast<size_t>(args.num_groups);
  const size_t size = scratch.choice.size() / groups;
  std::vector<float> values(groups);
  for (size_t g = 0; g < groups; ++g) {
    values[g] =
        GroupValue(scratch.choice.data() + g * size, scratch.choice.data() + (g + 1) * size);
  }
  SortBest(scratch.order, groups, groups, values);
  for (size_t i = static_cast<size_t>(args.top_k_groups); i < groups; ++i) {
    const size_t begin = static_cast<size_t>(scratch.order[i]) * size;
    std::fill_n(scratch.choice.begin() + static_cast<std::ptrdiff_t>(begin), size, kNever);
  }
}

void RouteRow(const RouteArgs& args, int row, RouterScratch& scratch) {
  const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.experts);
  args.sigmoid ? Sigmoid(logits, scratch.scores) : Softmax(logits, scratch.scores);
  // Softmax keeps the order of the logits, which unlike its values never become equal by underflow.
  const float* values = args.sigmoid ? scratch.scores.data() : logits;
  for (size_t e = 0; e < scratch.scores.size(); ++e) {
    const float bias = args.correction_bias == nullptr ? 0.0f : args.correction_bias[e];
    scratch.choice[e] = WithoutNan(values[e] + bias);
  }
  if (args.num_groups > 1) MaskGroups(args, scratch);
  const size_t top_k = static_cast<size_t>(args.top_k);
  SortBest(scratch.order, scratch.choice.size(), top_k, scratch.choice);
  int32_t* ids = args.ids + static_cast<size_t>(row) * top_k;
  float* weights = args.weights + static_cast<size_t>(row) * top_k;
  float total = args.normalize_epsilon;
  for (size_t i = 0; i < top_k; ++i) {
    ids[i] = scratch.order[i];
    const size_t expert = static_cast<size_t>(ids[i]);
    weights[i] = scratch.choice[expert] == kNever ? 0.0f : scratch.scores[expert];
    total += weights[i];
  }
  const float divisor = args.normalize_weights && total > 0 ? total : 1.0f;
  for (size_t i = 0; i < top_k; ++i) weights[i] = weights[i] / divisor * args.scaling_factor;
}

}  // namespace

void RouterLogits(const CpuContext& cpu, const RouterLogitsArgs& args) {
  const int64_t grain =
      std::max<int64_t>(1, (int64_t{1} << 16) / (int64_t{args.hidden} * args.experts));
  cpu.threads.ParallelFor(args.rows, grain, [&](int64_t begin, int64_t end) {
    for (size_t r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      cpu.rows.dot_f32(args.x + r * static_cast<size_t>(args.hidden), args.weight,
                       static_cast<size_t>(args.hidden), args.experts, args.hidden,
                       args.logits + r * static_cast<size_t>(args.experts));
    }
  });
}

void Route(const CpuContext& cpu, const RouteArgs& args) {
  cpu.threads.ParallelFor(args.rows, 16, [&](int64_t begin, int64_t end) {
    RouterScratch scratch(args);
    for (int64_t r = begin; r < end; ++r) RouteRow(args, static_cast<int>(r), scratch);
  });
}

}  // namespace atelier::cpu_ops
